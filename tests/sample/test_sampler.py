"""Sampler as callers meet it: state, borders, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, SamplingError, ShapeError, TokenizerError
from ollama_engine.sample import Sampler, SamplingParams, sample_rows
from tests.sample import rows
from tests.sample.rows import FloatRow

V = 500
PARAMS = SamplingParams(seed=7, top_k=0, top_p=0.95, repeat_penalty=1.2, repeat_last_n=16, frequency_penalty=0.1)


def stream(sampler: Sampler, logits: FloatRow, n: int) -> list[int]:
    """n tokens, each accepted before the next one."""
    tokens = []
    for _ in range(n):
        tokens.append(sampler.sample(logits))
        sampler.accept(tokens[-1])
    return tokens


@pytest.fixture
def logits() -> FloatRow:
    return rows.gaussian(V, 2.0)


def test_same_seed_same_tokens(logits: FloatRow) -> None:
    assert stream(Sampler(PARAMS, V), logits, 50) == stream(Sampler(PARAMS, V), logits, 50)


def test_without_a_seed_a_fresh_one_is_drawn_and_told(logits: FloatRow) -> None:
    first, second = (Sampler(SamplingParams(top_k=0), V) for _ in range(2))
    assert first.seed != second.seed
    again = Sampler(SamplingParams(top_k=0, seed=first.seed), V)
    assert stream(again, logits, 20) == stream(first, logits, 20)


def test_fork_continues_like_the_original_and_apart_from_it(logits: FloatRow) -> None:
    original = Sampler(PARAMS, V)
    stream(original, logits, 40)
    twin = original.fork()
    assert (twin.seed, twin.draws, twin.params, twin.n_vocab) == (original.seed, original.draws, PARAMS, V)
    expected = stream(original.fork(), logits, 40)
    twin.accept_many([3] * 16)
    stream(twin, logits, 5)
    assert stream(original, logits, 40) == expected


def test_fork_keeps_a_fresh_seed_and_biases(logits: FloatRow) -> None:
    params = SamplingParams(top_k=0, logit_bias={0: 4.0, 7: -math.inf}, presence_penalty=0.5)
    sampler = Sampler(params, V)
    sampler.accept_many([7, 0, 12])
    assert stream(sampler.fork(), logits, 30) == stream(sampler, logits, 30)


def test_reset_starts_over(logits: FloatRow) -> None:
    sampler = Sampler(PARAMS, V)
    first = stream(sampler, logits, 30)
    assert sampler.draws == 30
    sampler.reset()
    assert sampler.draws == 0
    assert stream(sampler, logits, 30) == first


def test_greedy_draws_no_random_number(logits: FloatRow) -> None:
    sampler = Sampler(SamplingParams(temperature=0), V)
    assert sampler.sample(logits) == int(np.argmax(logits))
    assert sampler.draws == 0


def test_the_logits_are_only_read(logits: FloatRow) -> None:
    before = logits.copy()
    logits.flags.writeable = False
    stream(Sampler(PARAMS, V), logits, 20)
    assert np.array_equal(logits, before)


# -- rows that have no token -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
@pytest.mark.parametrize("where", [[0], [63], [64, 70], [V - 1], [5, 130, 499]])
def test_nan_and_positive_infinity_raise(logits: FloatRow, bad: float, where: list[int]) -> None:
    logits[where] = bad
    sampler = Sampler(PARAMS, V)
    with pytest.raises(SamplingError, match=rf"in {len(where)} places, the first at token {where[0]}:"):
        sampler.sample(logits)
    with pytest.raises(SamplingError, match=rf"the first at token {where[0]}:"):
        sampler.logprobs(logits, 0)
    assert sampler.draws == 0


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=0)])
def test_nothing_above_minus_infinity_raises(params: SamplingParams) -> None:
    with pytest.raises(SamplingError, match="-inf"):
        Sampler(params, 100).sample(np.full(100, -np.inf, np.float32))


def test_banning_the_only_candidate_raises() -> None:
    sampler = Sampler(SamplingParams(logit_bias={777: -math.inf}), 1000)
    with pytest.raises(SamplingError, match="-inf"):
        sampler.sample(rows.one_above(1000, 777))


# -- borders -----------------------------------------------------------------------------------------------------------

WRONG_ROWS: list[Any] = [
    np.zeros(V - 1, np.float32),
    np.zeros(V + 1, np.float32),
    np.zeros(0, np.float32),
    np.zeros(V, np.float64),
    np.zeros(V, np.int32),
    np.zeros(2 * V, np.float32)[::2],
    np.zeros((1, V), np.float32),
    [0.0] * V,
    b"\0" * 4 * V,
    None,
]


@pytest.mark.parametrize("wrong", WRONG_ROWS, ids=repr)
def test_wrong_logits_raise(wrong: Any) -> None:
    sampler = Sampler(PARAMS, V)
    calls: list[Callable[[], object]] = [
        lambda: sampler.sample(wrong),
        lambda: sampler.logprobs(wrong, 0),
        lambda: sample_rows([sampler, sampler.fork()], wrong),
    ]
    for call in calls:
        with pytest.raises(ShapeError, match="contiguous float32"):
            call()


@pytest.mark.parametrize("token", [-1, V, 2**31, -(2**40), 10**30])
def test_tokens_outside_the_vocabulary_raise_and_change_nothing(logits: FloatRow, token: int) -> None:
    sampler = Sampler(PARAMS, V)
    with pytest.raises(TokenizerError, match=f"from 0 to {V - 1}, got {token}"):
        sampler.accept_many([1, 2, 3, token])
    with pytest.raises(TokenizerError):
        sampler.accept(token)
    with pytest.raises(TokenizerError):
        sampler.logprobs(logits, token)
    assert stream(sampler, logits, 20) == stream(Sampler(PARAMS, V), logits, 20)


@pytest.mark.parametrize("token", [1.0, "1", None])
def test_tokens_that_are_no_integers_raise(token: Any) -> None:
    with pytest.raises(TypeError):
        Sampler(PARAMS, V).accept(token)


KINDS_OF_IDS = ([], (), np.array([1, 2]), range(3), iter([4, 5]), [np.int32(3)])


@pytest.mark.parametrize("ids", KINDS_OF_IDS, ids=lambda ids: type(ids).__name__)
def test_any_iterable_of_ids_is_accepted(ids: Any) -> None:
    Sampler(PARAMS, V).accept_many(ids)


@pytest.mark.parametrize("n_vocab", [0, -1, 2**24 + 1, 10**20])
def test_n_vocab_out_of_range_raises(n_vocab: int) -> None:
    with pytest.raises(ConfigError, match="n_vocab must be from 1 to 16777216"):
        Sampler(PARAMS, n_vocab)


def test_construction_is_checked() -> None:
    with pytest.raises(ConfigError, match="names token 500, the vocabulary ends at 499"):
        Sampler(SamplingParams(logit_bias={500: 1.0}), V)
    with pytest.raises(TypeError, match="SamplingParams"):
        Sampler({"top_k": 1}, V)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Sampler.__new__(Sampler)  # type: ignore[call-arg]


def test_repr_tells_what_reproduces_it() -> None:
    assert "seed=7, draws=0" in repr(Sampler(PARAMS, V))
