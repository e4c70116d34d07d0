"""The C sampler gives the tokens of the numpy twin, exactly."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ollama_engine.errors import SamplingError
from ollama_engine.sample import Sampler, SamplingParams
from tests.sample import rows, twin
from tests.sample.rows import ADVERSARIAL, FloatRow
from tests.support.suite import scaled, slow_except

CUTS = {
    "greedy": SamplingParams(temperature=0),
    "defaults": SamplingParams(),
    "no cut": SamplingParams(top_k=0, top_p=1),
    "top-k 1": SamplingParams(top_k=1),
    "top-k only": SamplingParams(top_k=7, top_p=1),
    "top-k beyond the vocabulary": SamplingParams(top_k=10**9),
    "top-k beyond the list": SamplingParams(top_k=4500, top_p=0.99),
    "top-p only": SamplingParams(top_k=0, top_p=0.5),
    "top-p nearly off": SamplingParams(top_k=0, top_p=0.999999),
    "top-p 0": SamplingParams(top_k=0, top_p=0),
    "min-p only": SamplingParams(top_k=0, top_p=1, min_p=0.05),
    "min-p 1": SamplingParams(top_k=0, top_p=1, min_p=1),
    "min-p tiny": SamplingParams(top_k=0, top_p=1, min_p=1e-30),
    "top-p and min-p": SamplingParams(top_k=0, top_p=0.8, min_p=0.01),
    "all three, hot": SamplingParams(temperature=3, top_k=100, top_p=0.95, min_p=0.02),
    "freezing": SamplingParams(temperature=1e-300, top_k=0),
    "boiling": SamplingParams(temperature=1e300, top_k=0),
}
QUICK_CUTS = ("greedy", "defaults", "no cut", "top-k beyond the list", "top-p and min-p")


def assert_same_tokens(logits: FloatRow, params: SamplingParams, *, seed: int, draws: int, history: list[int]) -> None:
    sampler = Sampler(params, len(logits))
    sampler.accept_many(history)
    expected = [twin.sample(logits, params, seed, draw, history) for draw in range(draws)]
    if expected[0] is None:
        with pytest.raises(SamplingError, match="-inf"):
            sampler.sample(logits)
        return
    assert [sampler.sample(logits) for _ in range(draws)] == expected


@pytest.mark.parametrize("cut", slow_except(CUTS, *QUICK_CUTS, "top-p 0", "min-p only", "freezing"))
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_rows(name: str, cut: str) -> None:
    params = replace(CUTS[cut], seed=42)
    assert_same_tokens(ADVERSARIAL[name], params, seed=42, draws=8, history=[])


@pytest.mark.parametrize("cut", slow_except(CUTS, *QUICK_CUTS))
@pytest.mark.parametrize("scale", [0.2, 4.0])
def test_large_vocabulary(cut: str, scale: float) -> None:
    params = replace(CUTS[cut], seed=2**64 - 1)
    assert_same_tokens(rows.gaussian(262_144, scale), params, seed=2**64 - 1, draws=3, history=[])


@pytest.mark.parametrize("name", ["no cut", "top-p only", "top-p and min-p", "top-k beyond the list", "greedy"])
def test_touched_tokens_in_a_large_vocabulary(name: str) -> None:
    """The best tokens are the ones that penalties touch and biases ban: no bound on the raw logits holds."""
    logits = rows.gaussian(50_000, 5.0)
    best = np.argsort(-logits)
    params = replace(
        CUTS[name],
        seed=5,
        repeat_penalty=3.0,
        repeat_last_n=-1,
        logit_bias={int(best[0]): -math.inf, int(best[1]): -math.inf, int(best[40_000]): 30.0},
    )
    assert_same_tokens(logits, params, seed=5, draws=4, history=[int(token) for token in best[:300]])


def test_whole_vocabulary_touched() -> None:
    logits = rows.quantised(700, 0.5)
    params = SamplingParams(seed=9, repeat_penalty=1.3, repeat_last_n=-1, presence_penalty=0.5, frequency_penalty=0.1)
    assert_same_tokens(logits, params, seed=9, draws=16, history=[*range(700), *range(0, 700, 3)])


def test_a_ban_holds_for_a_logit_that_a_penalty_made_overflow() -> None:
    logits = rows.row([1.8e38, 1.0])
    params = SamplingParams(temperature=0, repeat_penalty=0.5, logit_bias={0: -math.inf})
    assert_same_tokens(logits, params, seed=0, draws=1, history=[0])
    sampler = Sampler(params, 2)
    sampler.accept(0)
    assert sampler.sample(logits) == 1


logits_rows = st.one_of(
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-20, 20, width=32)),
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.sampled_from([-math.inf, -1.5, 0.0, 1.0, 1.25])),
    hnp.arrays(
        np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False, max_value=float(rows.HIGHEST))
    ),
)
cuts = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.just(0.0), st.floats(0.05, 10)),
        "top_k": st.integers(0, 320),
        "top_p": st.floats(0, 1),
        "min_p": st.one_of(st.just(0.0), st.floats(0, 1)),
        "seed": st.integers(0, 2**64 - 1),
    }
)
penalties = st.fixed_dictionaries(
    {
        "repeat_penalty": st.floats(0.5, 2),
        "repeat_last_n": st.integers(-1, 12),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
    }
)


@settings(max_examples=scaled(400, quick=80))
@given(logits=logits_rows, cut=cuts, penalty=penalties, data=st.data())
def test_any_row_any_parameters(
    logits: FloatRow, cut: dict[str, float], penalty: dict[str, float], data: st.DataObject
) -> None:
    tokens = st.integers(0, len(logits) - 1)
    bias = data.draw(st.dictionaries(tokens, st.one_of(st.floats(-50, 50, width=32), st.just(-math.inf)), max_size=5))
    history = data.draw(st.lists(tokens, max_size=30))
    params = SamplingParams(**cut, **penalty, logit_bias=bias)  # type: ignore[arg-type]
    assert_same_tokens(logits, params, seed=int(cut["seed"]), draws=3, history=history)


def test_philox_is_the_published_generator() -> None:
    """Known answers that accompany the paper (Random123, philox4x32, 10 rounds); C is held to the twin above."""
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
    ones = [0xFFFFFFFF] * 6
    for words, expected in [
        ([0] * 6, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (ones, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (pi, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]:
        assert twin.philox4x32(words[:4], words[4:]) == expected
