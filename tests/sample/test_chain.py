"""All samplers in any order: the C sampler gives the candidates, tokens and state of the numpy twin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ollama_engine.errors import ConfigError, SamplingError
from ollama_engine.sample import Sampler, SamplingParams, SequenceBreakers, sample_rows, sampler_instructions
from ollama_engine.sample.params import SAMPLERS
from tests.sample import rows, twin
from tests.sample.rows import ADVERSARIAL, FloatRow, bitmap
from tests.support.instruction_sets import SAMPLER, RecordProperty, every
from tests.support.suite import scaled, slow_except

OFF = SamplingParams(temperature=1, top_k=0, top_p=1, seed=7)
ALONE = {
    "typical": replace(OFF, typical_p=0.6),
    "typical 0": replace(OFF, typical_p=0),
    "typical of few": replace(OFF, typical_p=0.9, top_k=30),
    "top-n-sigma": replace(OFF, top_n_sigma=1.5),
    "top-n-sigma of few": replace(OFF, top_n_sigma=0.7, samplers=("top_k", "top_n_sigma"), top_k=50),
    "XTC": replace(OFF, xtc_probability=1, xtc_threshold=0.02),
    "XTC sometimes": replace(OFF, xtc_probability=0.5, xtc_threshold=0.05),
    "XTC of any": replace(OFF, xtc_probability=1, xtc_threshold=0),
    "dynatemp": replace(OFF, temperature=0.8, dynatemp_range=0.7, dynatemp_exponent=1.3),
    "dynatemp of few": replace(OFF, dynatemp_range=2, dynatemp_exponent=0.5, top_k=20),
    "mirostat 1": replace(OFF, mirostat=1, mirostat_tau=2),
    "mirostat 2": replace(OFF, mirostat=2, mirostat_tau=2),
    "mirostat, cold": replace(OFF, mirostat=2, mirostat_tau=4, temperature=0.3),
    "adaptive-p": replace(OFF, adaptive_target=0.2),
    "adaptive-p after min-p": replace(OFF, adaptive_target=0.4, min_p=0.02),
    "min_keep": replace(OFF, min_p=0.9, top_p=0.1, typical_p=0.2, min_keep=4),
    "llama.cpp's order": SamplingParams(seed=3, min_p=0.05, xtc_probability=0.4, typical_p=0.95, dynatemp_range=0.3),
    "temperature first": SamplingParams(seed=3, min_p=0.05, samplers=("temperature", "top_p", "min_p")),
    "penalties last": SamplingParams(seed=3, repeat_penalty=1.5, samplers=("top_k", "temperature", "penalties")),
    "nothing": replace(OFF, temperature=0, samplers=()),
}


def expected(logits: FloatRow, params: SamplingParams, draws: int, history: list[int], **more: Any) -> list[int | None]:
    """Tokens drawn one after the other, each of them accepted."""
    history, state, found = list(history), twin.State.of(params), list[int | None]()
    for draw in range(draws):
        found.append(twin.sample(logits, params, params.seed or 0, draw, history, state=state, **more))
        if found[-1] is None:
            break
        history.append(found[-1])
    return found


def drawn(
    logits: FloatRow, params: SamplingParams, draws: int, history: list[int], instructions: str | None = None
) -> list[int | None]:
    sampler, found = Sampler(params, len(logits), instructions), list[int | None]()
    sampler.accept_many(history)
    for _ in range(draws):
        try:
            found.append(sampler.sample(logits))
        except SamplingError:
            found.append(None)
            break
        sampler.accept(found[-1])
    return found


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("row", ADVERSARIAL)
def test_adversarial_rows(row: str, name: str) -> None:
    logits, params = ADVERSARIAL[row], ALONE[name]
    draws = scaled(4, quick=2)
    tokens = expected(logits, params, draws, [0])
    for instructions in (None, "scalar"):
        assert drawn(logits, params, draws, [0], instructions) == tokens


@pytest.mark.parametrize("scale", slow_except([0.2, 1.0, 4.0], 1.0))
@pytest.mark.parametrize("name", ALONE)
def test_a_large_vocabulary(name: str, scale: float) -> None:
    logits = rows.gaussian(50_021, scale)
    assert drawn(logits, ALONE[name], 2, [0]) == expected(logits, ALONE[name], 2, [0])


@pytest.mark.parametrize("name", ALONE)
def test_instructions_agree(name: str, record_property: RecordProperty) -> None:
    logits, sets = rows.gaussian(128_256, 3.0), every(SAMPLER, sampler_instructions(), record_property)
    assert len({tuple(drawn(logits, ALONE[name], 3, [1, 2], each)) for each in sets}) == 1


@pytest.mark.parametrize("name", ALONE)
def test_a_mask_leaves_what_a_vocabulary_without_those_tokens_would_have(name: str) -> None:
    params = replace(ALONE[name], mirostat=ALONE[name].mirostat and 2)  # mirostat 1 asks how large the vocabulary is
    logits, allowed = rows.gaussian(6_000, 2.5), rows.some(6_000, 0.9)
    tokens = np.flatnonzero(allowed)
    masked = Sampler(params, 6_000).candidates(logits, bitmap(allowed))
    alone = Sampler(params, len(tokens)).candidates(np.ascontiguousarray(logits[allowed]))
    assert masked == {int(tokens[token]): p for token, p in alone.items()}


def test_a_temperature_near_zero_makes_no_nonsense_of_penalties() -> None:
    """1 / temperature would be infinity, and times a logit of 0 no number."""
    params = replace(OFF, temperature=0, dynatemp_range=5e-324, presence_penalty=1, samplers="temperature;penalties")
    for logits in (rows.row([0.0, -30.0, -0.5]), rows.row([1.0, 0.0, 1.0])):
        assert drawn(logits, params, 3, [1]) == expected(logits, params, 3, [1])
        assert set(Sampler(params, 3).candidates(logits)) <= {0, 1, 2}


# -- any row, any parameters, any order --------------------------------------------------------------------------------

logits_rows = st.one_of(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-20, 20, width=32)),
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.sampled_from([-math.inf, -1.5, 0.0, 1.0, 1.25])),
    hnp.arrays(
        np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False, max_value=float(rows.HIGHEST))
    ),
)
share = st.floats(0, 1)
parameters = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**64 - 1), "samplers": st.permutations(SAMPLERS[:-1]).map(tuple)},
    optional={
        "temperature": st.one_of(st.just(0.0), st.floats(0.05, 10)),
        "dynatemp_range": st.floats(0, 3),
        "dynatemp_exponent": st.floats(0, 3),
        "top_k": st.integers(0, 220),
        "top_p": share,
        "min_p": share,
        "typical_p": share,
        "top_n_sigma": st.floats(-1, 4),
        "xtc_probability": st.sampled_from([0, 0.5, 1]),
        "xtc_threshold": st.floats(0, 0.6),
        "min_keep": st.integers(0, 10),
        "mirostat": st.integers(0, 2),
        "mirostat_tau": st.floats(0, 8),
        "mirostat_eta": share,
        "repeat_penalty": st.floats(0.5, 2),
        "repeat_last_n": st.integers(-1, 12),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "dry_multiplier": st.floats(0, 3),
        "dry_base": st.floats(1, 3),
        "dry_allowed_length": st.integers(0, 4),
        "dry_penalty_last_n": st.integers(-1, 20),
    },
)


def test_greedy_takes_the_best_logit_where_two_weigh_the_same() -> None:
    """Weights have 40 bits: top-p alone would keep the first of two tokens whose logits differ by less."""
    logits = np.array([-1e-9, 0], dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=0, top_p=0, samplers=("top_p", "temperature")), 2)
    assert sampler.candidates(logits) == {1: 1.0}
    assert sampler.sample(logits) == 1


@settings(max_examples=scaled(1500, quick=300))
@given(logits=logits_rows, given=parameters, data=st.data())
def test_any_row_any_chain(logits: FloatRow, given: dict[str, Any], data: st.DataObject) -> None:
    n = len(logits)
    tokens = st.integers(0, min(n, 4) - 1)  # few, so that they repeat
    history = data.draw(st.lists(tokens, max_size=30))
    sequences = data.draw(st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=3))
    allowed = data.draw(st.one_of(st.none(), hnp.arrays(np.bool_, n)))
    if not given.get("mirostat") and data.draw(st.booleans()):
        given |= {"adaptive_target": data.draw(share), "adaptive_decay": data.draw(st.floats(0, 0.99))}
        given["samplers"] = (*given["samplers"], "adaptive_p")
    params = SamplingParams(**given)
    sampler = Sampler(params, n, breakers=SequenceBreakers.of(n, sequences))
    sampler.accept_many(history)
    state = twin.State.of(params)
    mask = None if allowed is None else bitmap(allowed)
    for _ in range(3):
        _, second = twin.random_bits(sampler.seed, sampler.draws)
        found = twin.candidates(logits, params, second, history, allowed, sequences, state)
        if found is None:
            with pytest.raises(SamplingError, match="-inf"):
                sampler.sample(logits, mask)
            return
        total = float(found[0].weight.sum())
        pairs = zip(found[0].tokens, found[0].weight, strict=True)
        assert sampler.candidates(logits, mask) == {int(token): float(w) / total for token, w in pairs}
        token = twin.sample(logits, params, sampler.seed, sampler.draws, history, allowed, sequences, state)
        assert sampler.sample(logits, mask) == token
        assert token is not None
        sampler.accept(token)
        history.append(token)
        assert sampler.mirostat_mu == state.mu
        assert sampler.adaptive_mean == state.adaptive_sum / state.adaptive_weight


# -- state -------------------------------------------------------------------------------------------------------------

WITH_STATE = {
    "mirostat": replace(OFF, mirostat=2, mirostat_tau=2, mirostat_eta=0.5),
    "adaptive-p": replace(OFF, adaptive_target=0.3, adaptive_decay=0.5),
    "DRY": replace(OFF, dry_multiplier=2, dry_allowed_length=1, dry_penalty_last_n=9),
    "XTC": replace(OFF, xtc_probability=0.5, xtc_threshold=0.05),
}


def tokens_of(sampler: Sampler, n: int) -> list[int]:
    found = []
    for i in range(n):
        found.append(sampler.sample(rows.gaussian(40, 2.0, seed=i)))
        sampler.accept(found[-1])
    return found


@pytest.mark.parametrize("name", WITH_STATE)
def test_a_fork_goes_on_with_the_state(name: str) -> None:
    sampler = Sampler(WITH_STATE[name], 40, breakers=SequenceBreakers.of(40, [[3], [5, 6]]))
    tokens_of(sampler, 20)
    fork = sampler.fork()
    state = (sampler.mirostat_mu, sampler.adaptive_mean, sampler.draws)
    tokens = tokens_of(fork, 20)
    assert (sampler.mirostat_mu, sampler.adaptive_mean, sampler.draws) == state
    assert tokens_of(sampler, 20) == tokens
    assert (fork.mirostat_mu, fork.adaptive_mean) == (sampler.mirostat_mu, sampler.adaptive_mean)


@pytest.mark.parametrize("name", WITH_STATE)
def test_a_reset_forgets_it(name: str) -> None:
    sampler = Sampler(WITH_STATE[name], 40)
    tokens = tokens_of(sampler, 30)
    sampler.reset()
    assert tokens_of(sampler, 30) == tokens


@pytest.mark.parametrize("name", WITH_STATE)
def test_tokens_are_the_same_alone_and_in_any_batch(name: str) -> None:
    alone, together = Sampler(WITH_STATE[name], 40), Sampler(WITH_STATE[name], 40)
    others = [Sampler(params, 40) for params in ALONE.values()]
    for i in range(12):
        logits = rows.gaussian(40, 2.0, seed=i)
        token = alone.sample(logits)
        batch = np.ascontiguousarray(np.broadcast_to(logits, (1 + len(others), 40)))
        assert sample_rows([*others, together], batch)[-1] == token
        alone.accept(token)
        together.accept(token)


@pytest.mark.parametrize("name", ["mirostat", "adaptive-p"])
def test_only_an_accepted_draw_changes_the_state(name: str) -> None:
    """A token sampled and not accepted, or another one accepted (a forced token), leaves it."""
    sampler = Sampler(WITH_STATE[name], 40)
    logits = rows.gaussian(40, 2.0)
    before = (sampler.mirostat_mu, sampler.adaptive_mean)
    token = sampler.sample(logits)
    assert (sampler.mirostat_mu, sampler.adaptive_mean) == before
    sampler.accept((token + 1) % 40)
    assert (sampler.mirostat_mu, sampler.adaptive_mean) == before
    sampler.accept(sampler.sample(logits))
    assert (sampler.mirostat_mu, sampler.adaptive_mean) != before


def test_asking_for_candidates_changes_nothing() -> None:
    for params in ALONE.values():
        asked, other = Sampler(params, 300), Sampler(params, 300)
        for i in range(4):
            logits = rows.gaussian(300, 2.0, seed=i)
            token = other.sample(logits)
            found = asked.candidates(logits)
            assert asked.sample(logits) == token
            assert math.isclose(sum(found.values()), 1)
            assert token in found
            asked.accept(token)
            other.accept(token)


def test_breakers_belong_to_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match="breakers of 9 tokens do not fit a vocabulary of 10"):
        Sampler(OFF, 10, breakers=SequenceBreakers.of(9, [[1]]))
    with pytest.raises(TypeError, match="must be SequenceBreakers, got list"):
        Sampler(OFF, 10, breakers=[[1]])  # type: ignore[arg-type]
