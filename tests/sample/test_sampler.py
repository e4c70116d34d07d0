"""Sampler and sample_batch as callers meet them: state, borders, errors, threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, SamplingError, ShapeError, TokenizerError
from ollama_engine.sample import Sampler, SamplingParams, sample_batch
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
    one, other = (Sampler(SamplingParams(top_k=0), V) for _ in range(2))
    assert one.seed != other.seed
    again = Sampler(SamplingParams(top_k=0, seed=one.seed), V)
    assert stream(again, logits, 20) == stream(one, logits, 20)


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
        lambda: sample_batch([sampler, sampler], wrong),
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


@pytest.mark.parametrize("ids", [[], (), np.array([1, 2]), range(3), iter([4, 5]), [np.int32(3)]], ids=repr)
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


# -- batch -------------------------------------------------------------------------------------------------------------


def test_batch_equals_row_by_row_at_any_position() -> None:
    n = 40
    params = [
        SamplingParams(seed=i, top_k=(0, 1, 40)[i % 3], temperature=(0, 0.7, 2)[i % 4 % 3], presence_penalty=i % 2)
        for i in range(n)
    ]
    steps = [rows.gaussian(n * 300, 2.0, seed=step).reshape(n, 300) for step in range(5)]
    alone, together, reverse = ([Sampler(p, 300) for p in params] for _ in range(3))
    for logits in steps:
        expected = [sampler.sample(one) for sampler, one in zip(alone, logits, strict=True)]
        assert sample_batch(together, logits) == expected
        assert sample_batch(reverse[::-1], np.ascontiguousarray(logits[::-1]))[::-1] == expected
        for samplers in (alone, together, reverse):
            for sampler, token in zip(samplers, expected, strict=True):
                sampler.accept(int(token))


def test_a_bad_row_spoils_only_itself(logits: FloatRow) -> None:
    batch = np.stack([logits] * 4)
    batch[1, 9] = math.nan
    batch[2] = -math.inf
    good = Sampler(PARAMS, V).sample(logits)
    samplers = [Sampler(PARAMS, V) for _ in range(4)]
    first, nan, empty, last = sample_batch(samplers, batch)
    assert (first, last) == (good, good)
    assert isinstance(nan, SamplingError)
    assert "the first at token 9" in str(nan)
    assert isinstance(empty, SamplingError)
    assert [sampler.draws for sampler in samplers] == [1, 0, 0, 1]


def test_one_sampler_may_own_several_rows(logits: FloatRow) -> None:
    one, other = Sampler(PARAMS, V), Sampler(PARAMS, V)
    assert sample_batch([one] * 10, np.stack([logits] * 10)) == [other.sample(logits) for _ in range(10)]


def test_batch_borders(logits: FloatRow) -> None:
    sampler = Sampler(PARAMS, V)
    assert sample_batch([], np.zeros((0, V), np.float32)) == []
    with pytest.raises(ShapeError, match=r"float32 \[2, n_vocab\], got float32 \[1, 500\]"):
        sample_batch([sampler, sampler], logits[None])
    with pytest.raises(ShapeError, match="over 9 tokens got rows of 500"):
        sample_batch([sampler, Sampler(PARAMS, 9)], np.stack([logits] * 2))
    with pytest.raises(TypeError, match="got str"):
        sample_batch(["sampler"], logits[None])  # type: ignore[list-item]
    assert sampler.draws == 0


def test_samplers_in_two_threads_are_independent() -> None:
    logits = rows.gaussian(20_000, 3.0)
    expected = stream(Sampler(PARAMS, 20_000), logits, 60)
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(stream(Sampler(PARAMS, 20_000), logits, 60))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_one_sampler_in_two_threads_is_refused_not_corrupted() -> None:
    """Whatever the threads meet, it is a token or a SamplingError."""
    logits = np.stack([rows.gaussian(50_000, 3.0)] * 4)
    shared = Sampler(PARAMS, 50_000)
    unexpected: list[BaseException] = []
    refused: list[str] = []

    def work() -> None:
        for _ in range(30):
            try:
                shared.accept_many(range(100))
                sample_batch([shared] * 4, logits)
            except SamplingError as error:
                refused.append(str(error))
            except BaseException as error:
                unexpected.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not unexpected
    assert all("another thread" in message for message in refused)
    assert shared.sample(logits[0]) >= 0


def test_repr_tells_what_reproduces_it() -> None:
    assert "seed=7, draws=0" in repr(Sampler(PARAMS, V))
