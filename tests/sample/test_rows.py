"""sample_rows and accept_rows: one call for all sequences of a step, each independent of the others, and of threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, SamplingError, ShapeError, TokenizerError
from ollama_engine.ml import Backend, BackendParams, Context
from ollama_engine.sample import Sampler, SamplingParams, accept_rows, sample_rows
from tests.sample import rows
from tests.sample.rows import FloatRow
from tests.support.doubled import doubled
from tests.support.suite import scaled
from tests.support.waiting import join

V = 500
PARAMS = SamplingParams(seed=7, top_k=0, top_p=0.95, repeat_penalty=1.2, repeat_last_n=16, frequency_penalty=0.1)


@pytest.fixture
def logits() -> FloatRow:
    return rows.gaussian(V, 2.0)


def different(n: int) -> list[SamplingParams]:
    """Parameters of n requests, no two alike."""
    return [
        SamplingParams(seed=i, top_k=(0, 1, 40)[i % 3], temperature=(0, 0.7, 2)[i % 4 % 3], presence_penalty=i % 2)
        for i in range(n)
    ]


def test_rows_equal_one_by_one_at_any_position() -> None:
    n = 40
    steps = [rows.gaussian(n * 300, 2.0, seed=step).reshape(n, 300) for step in range(5)]
    alone, together, reverse = ([Sampler(p, 300) for p in different(n)] for _ in range(3))
    for logits in steps:
        expected = [sampler.sample(row) for sampler, row in zip(alone, logits, strict=True)]
        assert sample_rows(together, logits) == expected
        assert sample_rows(reverse[::-1], np.ascontiguousarray(logits[::-1]))[::-1] == expected
        for sampler, token in zip(alone, expected, strict=True):
            sampler.accept(token)
        accept_rows(together, expected)
        accept_rows(reverse[::-1], expected[::-1])


def test_known_logits_give_what_the_whole_row_gives() -> None:
    """Rows of which a device has found the best: others are -inf, and nobody looks for them."""
    params = [*different(9), PARAMS, SamplingParams(seed=3, top_k=20, min_p=0.1)]
    rng = np.random.default_rng(5)
    table = np.full((len(params), V), -math.inf, np.float32)
    ids = [rng.choice(V, 60, replace=False).astype(np.int32) for _ in params]
    for row, known in zip(table, ids, strict=True):
        row[known] = rng.normal(0, 3, len(known))
    known = [None if i == 4 else each for i, each in enumerate(ids)]
    alone, together = ([Sampler(p, V) for p in params] for _ in range(2))
    for _ in range(20):
        expected = [sampler.sample(row) for sampler, row in zip(alone, table, strict=True)]
        assert sample_rows(together, table, known=known) == expected
        accept_rows(alone, expected)
        accept_rows(together, expected)


def test_only_known_logits_are_looked_at(logits: FloatRow) -> None:
    """So this row, which says otherwise of others, gives the best of the known ones."""
    known = np.array([3, 70, 400], np.int32)
    best = int(known[logits[known].argmax()])
    assert sample_rows([Sampler(SamplingParams(temperature=0), V)], logits[None], known=[known]) == [best]
    bad = logits.copy()
    bad[70] = math.nan
    (error,) = sample_rows([Sampler(SamplingParams(temperature=0), V)], bad[None], known=[known])
    assert isinstance(error, SamplingError)


@pytest.mark.parametrize("ids", [[-1], [V]])
def test_known_ids_are_of_the_vocabulary(logits: FloatRow, ids: list[int]) -> None:
    with pytest.raises(ShapeError, match=f"known ids are below {V}"):
        sample_rows([Sampler(SamplingParams(), V)], logits[None], known=[np.array(ids, np.int32)])
    with pytest.raises(ShapeError, match="expected known ids"):
        sample_rows([Sampler(SamplingParams(), V)], logits[None], known=[])


def test_columns_beyond_a_vocabulary_are_not_looked_at() -> None:
    sizes = [1, 63, 64, 65, 300, 320]
    table = rows.gaussian(len(sizes) * 320, 2.0).reshape(len(sizes), 320)
    for i, size in enumerate(sizes):
        table[i, size:] = math.nan
    alone, together = ([Sampler(SamplingParams(seed=i), v) for i, v in enumerate(sizes)] for _ in range(2))
    expected = [s.sample(np.ascontiguousarray(row[: s.n_vocab])) for s, row in zip(alone, table, strict=True)]
    assert sample_rows(together, table) == expected


def test_a_bad_row_spoils_only_itself(logits: FloatRow) -> None:
    batch = np.stack([logits] * 5)
    batch[1, 9] = math.nan
    batch[2] = -math.inf
    batch[3, 450] = math.inf
    good = Sampler(PARAMS, V).sample(logits)
    samplers = [Sampler(PARAMS, V) for _ in range(5)]
    first, nan, empty, infinite, last = sample_rows(samplers, batch)
    assert (first, last) == (good, good)
    for error, text in ((nan, "the first at token 9"), (empty, "-inf"), (infinite, "the first at token 450")):
        assert isinstance(error, SamplingError)
        assert text in str(error)
    assert [sampler.draws for sampler in samplers] == [1, 0, 0, 0, 1]


def test_sampling_does_not_accept(logits: FloatRow) -> None:
    params = SamplingParams(temperature=0, presence_penalty=1e6)
    samplers = [Sampler(params, V) for _ in range(2)]
    batch = np.stack([logits] * 2)
    assert sample_rows(samplers, batch) == [int(np.argmax(logits))] * 2 == sample_rows(samplers, batch)
    accept_rows(samplers, [np.argmax(logits), 0])
    assert sample_rows(samplers, batch) == [int(np.argsort(-logits)[1]), int(np.argmax(logits))]


def test_rows_of_a_mapped_tensor() -> None:
    """Logits are sampled where the graph left them: read-only, and not copied."""
    table = rows.gaussian(3 * V, 2.0).reshape(3, V)
    samplers = [Sampler(SamplingParams(seed=i), V) for i in range(3)]
    with Backend(BackendParams(threads=1), max_nodes=64) as backend, Context(backend) as ctx:
        _, y = doubled(ctx, table)
        with y.mapped() as logits:
            tokens = sample_rows(samplers, logits)
    assert tokens == [Sampler(SamplingParams(seed=i), V).sample(2 * table[i]) for i in range(3)]


# -- borders -----------------------------------------------------------------------------------------------------------


def test_no_rows() -> None:
    assert sample_rows([], np.zeros((0, V), np.float32)) == []
    accept_rows([], [])


WRONG: list[tuple[Any, str]] = [
    (np.zeros((1, V), np.float32), r"float32 \[2, n_columns\], got float32 \[1, 500\]"),
    (np.zeros((3, V), np.float32), r"got float32 \[3, 500\]"),
    (np.zeros((2, V), np.float64), r"got float64 \[2, 500\]"),
    (np.zeros((2, V), np.float16), r"got float16 \[2, 500\]"),
    (np.zeros((2, 2 * V), np.float32)[:, ::2], "contiguous"),
    (np.zeros((4, V), np.float32)[::2], "contiguous"),
    (np.zeros((2, V), np.float32, order="F"), "contiguous"),
    (np.zeros(2 * V, np.float32), "contiguous"),
    (np.zeros((2, V - 1), np.float32), "over 500 tokens got rows of 499 logits"),
    ([[0.0] * V] * 2, "got list"),
    (None, "got NoneType"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=str)
def test_wrong_logits_raise(wrong: Any, message: str) -> None:
    samplers = [Sampler(PARAMS, V), Sampler(PARAMS, V)]
    with pytest.raises(ShapeError, match=message):
        sample_rows(samplers, wrong)
    assert [sampler.draws for sampler in samplers] == [0, 0]


def test_a_sampler_comes_once(logits: FloatRow) -> None:
    first, second = Sampler(PARAMS, V), Sampler(PARAMS, V)
    with pytest.raises(ConfigError, match="row 0 comes again in row 2"):
        sample_rows([first, second, first], np.stack([logits] * 3))
    with pytest.raises(ConfigError, match="row 1 comes again in row 2"):
        accept_rows([first, second, second], [1, 2, 3])
    assert first.draws == 0
    assert first.sample(logits) == second.sample(logits)  # neither is left claimed, neither has accepted


def test_only_samplers_sample(logits: FloatRow) -> None:
    for wrong in ("sampler", None, PARAMS):
        with pytest.raises(TypeError, match="must hold Sampler"):
            sample_rows([wrong], logits[None])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="must hold Sampler"):
            accept_rows([wrong], [1])  # type: ignore[list-item]


def test_accepting_is_checked_before_anything_changes(logits: FloatRow) -> None:
    samplers = [Sampler(PARAMS, V) for _ in range(2)]
    with pytest.raises(ShapeError, match="each of 2 samplers, got 1"):
        accept_rows(samplers, [1])
    for token in (-1, V, 10**30):
        with pytest.raises(TokenizerError, match=f"from 0 to 499, got {token}"):
            accept_rows(samplers, [int(np.argmax(logits)), token])
    with pytest.raises(TypeError):
        accept_rows(samplers, [1, "2"])  # type: ignore[list-item]
    assert sample_rows(samplers, np.stack([logits] * 2)) == [Sampler(PARAMS, V).sample(logits)] * 2


# -- threads -----------------------------------------------------------------------------------------------------------


def in_threads(n: int, work: Callable[[], None]) -> list[BaseException]:
    """The errors with which n threads that run `work` at once ended."""
    raised: list[BaseException] = []

    def guard() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guard) for _ in range(n)]
    for thread in threads:
        thread.start()
    join(*threads)
    return raised


def test_samplers_in_two_threads_are_independent() -> None:
    logits = rows.gaussian(20_000, 3.0)

    def stream() -> list[int]:
        sampler = Sampler(PARAMS, 20_000)
        tokens = []
        for _ in range(60):
            tokens.append(sampler.sample(logits))
            sampler.accept(tokens[-1])
        return tokens

    expected = stream()
    results: list[list[int]] = []
    assert not in_threads(4, lambda: results.append(stream()))
    assert results == [expected] * 4


def test_one_sampler_in_many_threads_is_refused_not_corrupted() -> None:
    """Whatever the threads meet, it is a token or a SamplingError."""
    logits = np.stack([rows.gaussian(50_000, 3.0)] * 4)
    shared = [Sampler(PARAMS, 50_000) for _ in range(4)]
    refused: list[str] = []

    def work() -> None:
        for turn in range(30):
            try:
                shared[turn % 4].accept_many(range(100))
                accept_rows(shared, [1, 2, 3, turn])
                sample_rows(shared, logits)
                shared[turn % 4].sample(logits[0])
            except SamplingError as error:
                refused.append(str(error))

    assert not in_threads(4, work)
    assert all("another thread" in message for message in refused)
    assert all(isinstance(token, int) for token in sample_rows(shared, logits))


OFF = SamplingParams(seed=1, top_k=0, top_p=1)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1),
        SamplingParams(seed=1, top_k=0),
        replace(OFF, top_p=0.9, min_p=1e-9, repeat_penalty=1.5),
        replace(OFF, min_p=1e-9),
        replace(OFF, typical_p=0.5),
        replace(OFF, top_n_sigma=1.0),
        replace(OFF, xtc_probability=1, xtc_threshold=0.001),
        replace(OFF, dynatemp_range=1, top_p=0.99),
        replace(OFF, mirostat=1),
        replace(OFF, mirostat=2),
        replace(OFF, adaptive_target=0.3),
        replace(OFF, presence_penalty=1, samplers=("temperature", "penalties", "min_p")),
    ],
    ids=str,
)
def test_logits_that_another_thread_rewrites_give_a_token_or_an_error(params: SamplingParams) -> None:
    """Nonsense, since a row changed while it was read; but a token of the vocabulary, or a SamplingError."""
    n_vocab = 30_000
    sampler = Sampler(params, n_vocab)
    sampler.accept_many(range(50))
    logits = rows.gaussian(n_vocab, 3.0)[None].copy()
    values = [rows.gaussian(n_vocab, scale) for scale in (0.1, 3.0, 30.0)]
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for value in values:
                logits[0] = value

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(scaled(300, quick=100)):
            (token,) = sample_rows([sampler], logits)
            assert isinstance(token, SamplingError) or 0 <= token < n_vocab
    finally:
        done.set()
        join(writer)
