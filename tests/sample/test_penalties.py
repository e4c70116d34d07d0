"""Penalties and biases: the definitions on rows that can be checked by hand, and any history against the twin."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.sample import Sampler, SamplingParams
from tests.sample import twin
from tests.sample.rows import FloatRow, row
from tests.support.suite import scaled


@dataclass(frozen=True)
class Case:
    name: str
    logits: list[float]
    expected: int
    history: list[int] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("untouched", [1.0, 3.0, 2.0], 1),
    Case("repeat divides a positive logit", [1.0, 3.0, 2.0], 2, [1], {"repeat_penalty": 1.6}),
    Case("repeat multiplies a negative logit", [-4.0, -3.0, -2.0], 1, [2], {"repeat_penalty": 1.6}),
    Case("repeat counts once however often", [1.0, 3.0, 1.9], 1, [1, 1, 1], {"repeat_penalty": 1.5}),
    Case("presence counts once", [1.0, 3.0, 2.0], 1, [1, 1, 1], {"presence_penalty": 0.9}),
    Case("frequency counts each", [1.0, 3.0, 2.0], 2, [1, 1, 1], {"frequency_penalty": 0.4}),
    Case("negative frequency rewards", [1.0, 3.0, 2.0], 2, [2, 2, 2], {"frequency_penalty": -0.4}),
    Case("ties go to the lowest id", [3.0, 3.5, 3.0], 0, [1], {"presence_penalty": 0.5}),
    Case("a touched token wins its tie by id", [3.5, 3.0, 3.0], 0, [0], {"presence_penalty": 0.5}),
    Case("outside of the window", [1.0, 3.0, 2.0], 1, [1, 0, 0], {"presence_penalty": 9, "repeat_last_n": 2}),
    Case("inside of the window", [1.0, 3.0, 2.0], 2, [0, 1, 0], {"presence_penalty": 9, "repeat_last_n": 2}),
    Case("window 0 is off", [1.0, 3.0, 2.0], 1, [1], {"presence_penalty": 9, "repeat_last_n": 0}),
    Case("window -1 is everything", [1.0, 3.0, 2.0], 2, [1] + [0] * 99, {"presence_penalty": 9, "repeat_last_n": -1}),
    Case("bias adds", [1.0, 3.0, 2.0], 0, [], {"logit_bias": {0: 2.5}}),
    Case("bias bans", [1.0, 3.0, 2.0], 2, [], {"logit_bias": {1: -math.inf}}),
    Case("bias comes before the penalties", [1.0, 3.0, 2.0], 2, [1], {"repeat_penalty": 3, "logit_bias": {1: 1.5}}),
    Case("bias of a banned logit", [-math.inf, 3.0, 2.0], 1, [], {"logit_bias": {0: 100.0}}),
    Case("bias that overflows", [3e38, 1.0, 2.0], 0, [], {"logit_bias": {0: 3e38}}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_definitions(case: Case) -> None:
    params = SamplingParams(temperature=0, **case.params)
    logits = row(case.logits)
    sampler = Sampler(params, len(logits))
    for token in case.history:
        sampler.accept(token)
    assert sampler.sample(logits) == case.expected
    assert twin.sample(logits, params, 0, 0, case.history) == case.expected


@settings(max_examples=scaled(200, quick=50))
@given(
    chunks=st.lists(st.lists(st.integers(0, 11), max_size=20), max_size=6),
    window=st.integers(-1, 15),
    repeat=st.sampled_from([1.0, 1.1, 2.0, 0.5]),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    bias=st.dictionaries(st.integers(0, 11), st.floats(-5, 5), max_size=4),
)
def test_any_history_however_it_arrives(
    chunks: list[list[int]],
    window: int,
    repeat: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    """After each chunk the draws follow the penalties of the whole history so far."""
    logits = row(np.linspace(-1.5, 1.5, 12))
    params = SamplingParams(
        seed=3,
        top_k=0,
        top_p=1,
        repeat_last_n=window,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
    )
    sampler = Sampler(params, len(logits))
    history: list[int] = []
    for chunk in chunks:
        sampler.accept_many(chunk)
        history += chunk
        drawn = [sampler.fork().sample(logits)] + [sampler.sample(logits) for _ in range(4)]
        first = sampler.draws - 4
        expected = [twin.sample(logits, params, 3, first + i, history) for i in range(4)]
        assert drawn == [expected[0], *expected]


def test_long_prompts_and_windows() -> None:
    """A window that a prompt overfills in one call, then slides token by token through several turns of the ring."""
    n_vocab, window = 997, 64
    logits: FloatRow = row(np.random.default_rng(5).standard_normal(n_vocab))
    params = SamplingParams(seed=1, top_k=0, repeat_penalty=1.5, repeat_last_n=window, frequency_penalty=0.3)
    sampler = Sampler(params, n_vocab)
    history = [int(token) for token in np.random.default_rng(6).integers(0, 50, 5000)]
    sampler.accept_many(history)
    for draw in range(3 * window):
        token = sampler.sample(logits)
        assert token == twin.sample(logits, params, 1, draw, history)
        sampler.accept(token)
        history.append(token)
