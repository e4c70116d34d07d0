"""Sampler.best_needed: so many of the best logits give the token, the draws and the state that all of them give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.errors import SamplingError
from ollama_engine.sample import Sampler, SamplingParams
from tests.sample import rows
from tests.sample.rows import ADVERSARIAL, FloatRow
from tests.sample.test_twin import cuts, logits_rows, penalties
from tests.support.suite import scaled

V = 600
ALL = 0
"""The value of `best_needed` where each logit may matter."""
PENALTIES = {"repeat_penalty": 1.1, "repeat_last_n": 64}
DRY = {"dry_multiplier": 0.8, "dry_penalty_last_n": 32}


@pytest.mark.parametrize(
    ("params", "needed"),
    [
        ({}, 40),
        ({"temperature": 0}, 1),
        ({"temperature": 0, "top_k": 0, "min_p": 0.1, "top_n_sigma": 1.0}, 1),
        ({"top_k": 7, "typical_p": 0.5, "xtc_probability": 0.5, "adaptive_target": 0.3}, 7),
        ({"top_k": 7, "temperature": 0, "xtc_probability": 0.5, "samplers": ("top_k", "xtc", "temperature")}, 7),
        ({"temperature": 0, "xtc_probability": 0.5}, 1),
        ({**PENALTIES}, 104),
        ({**PENALTIES, "presence_penalty": 0.5, "frequency_penalty": 0.5, "temperature": 0}, 65),
        ({**PENALTIES, **DRY, "logit_bias": {1: -1.0, 3: -math.inf}}, 138),
        ({"repeat_penalty": 1.0, "repeat_last_n": -1}, 40),
        ({"top_k": 0}, ALL),
        ({"top_k": V}, ALL),
        ({"top_n_sigma": 1.0}, ALL),
        ({"mirostat": 2}, ALL),
        ({"samplers": ("temperature", "top_k")}, ALL),
        ({"samplers": ("top_p", "top_k")}, ALL),
        ({"temperature": 0, "xtc_probability": 0.5, "samplers": ("xtc", "temperature")}, ALL),
        ({"repeat_penalty": 0.9}, ALL),
        ({"presence_penalty": -0.1}, ALL),
        ({"frequency_penalty": -0.1, "temperature": 0}, ALL),
        ({"logit_bias": {3: 0.1}, "temperature": 0}, ALL),
        ({**PENALTIES, "repeat_last_n": -1}, ALL),
        ({**DRY, "dry_penalty_last_n": -1}, ALL),
        ({**PENALTIES, "repeat_last_n": V}, ALL),
    ],
)
def test_what_parameters_need(params: dict[str, Any], needed: int) -> None:
    assert Sampler(SamplingParams(**params), V).best_needed == needed


def best_of(logits: FloatRow, n: int) -> FloatRow:
    """The row with its n best logits, and -inf for others; more where the n-th has equals or the next ones do."""
    if n >= len(logits):
        return logits
    return np.where(logits >= np.partition(logits, -n)[-n], logits, np.float32(-np.inf))


def tokens(params: SamplingParams, logits: FloatRow, history: list[int]) -> list[Any]:
    """Several tokens, each accepted, and what is left of the sampler's state; or the error."""
    sampler = Sampler(params, len(logits))
    sampler.accept_many(history)
    found: list[Any] = []
    try:
        for _ in range(4):
            found.append(sampler.sample(logits))
            sampler.accept(found[-1])
    except SamplingError as error:
        found.append(str(error))
    return [*found, sampler.draws, sampler.adaptive_mean]


def check(params: SamplingParams, logits: FloatRow, history: list[int], more: int = 0) -> bool:
    """Whether there was anything to check."""
    needed = Sampler(params, len(logits)).best_needed
    if needed:
        assert tokens(params, best_of(logits, needed + more), history) == tokens(params, logits, history)
    return needed > 0


OTHERS = st.fixed_dictionaries(
    {
        "typical_p": st.sampled_from([1.0, 0.7]),
        "xtc_probability": st.sampled_from([0.0, 0.5]),
        "min_keep": st.sampled_from([0, 3]),
        "dynatemp_range": st.sampled_from([0.0, 0.5]),
        "adaptive_target": st.sampled_from([-1.0, 0.4]),
        "top_n_sigma": st.sampled_from([-1.0, 1.0]),
        "dry_multiplier": st.sampled_from([0.0, 1.0]),
        "dry_penalty_last_n": st.integers(-1, 8),
    }
)


@settings(max_examples=scaled(600, quick=150), derandomize=True)
@given(logits=logits_rows, cut=cuts, penalty=penalties, others=OTHERS, data=st.data())
def test_any_row_any_parameters(
    logits: FloatRow, cut: dict[str, Any], penalty: dict[str, Any], others: dict[str, Any], data: st.DataObject
) -> None:
    ids = st.integers(0, len(logits) - 1)
    bias = data.draw(st.dictionaries(ids, st.sampled_from([-math.inf, -3.0, -0.5, 0.0, 2.0]), max_size=3))
    history = data.draw(st.lists(ids, max_size=30))
    cut = {**cut, "top_k": cut["top_k"] % 12}
    check(SamplingParams(**cut, **penalty, **others, logit_bias=bias), logits, history, data.draw(st.integers(0, 3)))


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_rows(name: str) -> None:
    for params in ({"temperature": 0}, {"top_k": 5}, {"top_k": 5, **PENALTIES}):
        check(SamplingParams(seed=3, **params), ADVERSARIAL[name], [1, 2, 2, 3] if len(ADVERSARIAL[name]) > 3 else [])


@pytest.mark.parametrize("scale", [0.2, 4.0])
def test_the_best_are_the_ones_that_are_touched(scale: float) -> None:
    """As many of the best are penalized or banned as can be: those behind them decide."""
    logits = rows.gaussian(50_000, scale)
    best = [int(token) for token in np.argsort(-logits)]
    bans = dict.fromkeys(best[64:80], -math.inf)
    for cut in ({"temperature": 0}, {"top_k": 40}, {"top_k": 40, "dry_multiplier": 2.0, "dry_penalty_last_n": 40}):
        params = SamplingParams(seed=5, repeat_penalty=3.0, presence_penalty=30.0, logit_bias=bans, **cut)
        assert check(params, logits, best[:64])
