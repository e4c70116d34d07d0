"""The batches that measurements consist of, seen by a fake executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
import pytest

from ollama_engine.errors import ContextOverflowError
from ollama_engine.evaluate.measure import decode_seconds, prefill_seconds, random_tokens
from ollama_engine.input import Batch
from ollama_engine.kvcache import Cache
from ollama_engine.runner.execute.executor import Executor

Seen = list[tuple[list[int], list[int], list[int], list[int]]]


class FakeExecutor:
    """Remembers (tokens, positions, sequences, outputs) of every batch, and in what order a step's parts are called."""

    def __init__(self, batch_size: int, fails_at: int | None = None) -> None:
        self.batch_size = batch_size
        self.seen: Seen = []
        self.parts: list[str] = []
        self._fails_at = fails_at

    def prepare(self, batch: Batch) -> None:
        if len(self.seen) == self._fails_at:
            raise ContextOverflowError("full")
        arrays = (batch.tokens, batch.positions, batch.sequences, batch.outputs)
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
        self.seen.append(tuple(array.tolist() for array in arrays))
        self.parts.append("prepare")

    def launch(self, tokens: np.ndarray) -> None:
        assert tokens.tolist() == self.seen[-1][0]
        self.parts.append("launch")

    @contextmanager
    def results(self) -> Iterator[None]:
        self.parts.append("wait")
        yield

    def scrap(self) -> None:
        self.parts.append("scrap")


class FakeCache:
    def __init__(self) -> None:
        self.removed: list[int] = []

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        assert (begin, end) == (0, None)
        self.removed.append(sequence)


TOKENS = np.array([[10, 11, 12], [20, 21, 22]], dtype=np.int32)

CASES = [
    (prefill_seconds, TOKENS[:1], 8, [([10, 11, 12], [0, 1, 2], [0, 0, 0], [2])]),
    (prefill_seconds, TOKENS[:1], 2, [([10, 11], [0, 1], [0, 0], [1]), ([12], [2], [0], [0])]),
    (prefill_seconds, TOKENS, 8, [([10, 11, 12, 20, 21, 22], [0, 1, 2] * 2, [0] * 3 + [1] * 3, [2, 5])]),
    (
        prefill_seconds,
        TOKENS,
        4,
        [([10, 11, 12, 20], [0, 1, 2, 0], [0, 0, 0, 1], [2, 3]), ([21, 22], [1, 2], [1, 1], [1])],
    ),
    (decode_seconds, TOKENS[:1], 8, [([10], [0], [0], [0]), ([11], [1], [0], [0]), ([12], [2], [0], [0])]),
    (
        decode_seconds,
        TOKENS,
        8,
        [([10, 20], [0, 0], [0, 1], [0, 1]), ([11, 21], [1, 1], [0, 1], [0, 1]), ([12, 22], [2, 2], [0, 1], [0, 1])],
    ),
]


@pytest.mark.parametrize(("measure", "tokens", "batch_size", "batches"), CASES)
def test_batches(measure, tokens: np.ndarray, batch_size: int, batches: Seen) -> None:
    executor, cache = FakeExecutor(batch_size), FakeCache()
    assert measure(cast("Executor", executor), cast("Cache", cache), tokens) >= 0
    assert executor.seen == batches
    assert cache.removed == list(range(len(tokens)))


def test_the_cache_is_left_empty_after_a_failure() -> None:
    executor, cache = FakeExecutor(2, fails_at=1), FakeCache()
    with pytest.raises(ContextOverflowError):
        prefill_seconds(cast("Executor", executor), cast("Cache", cache), TOKENS)
    assert cache.removed == [0, 1]
    assert executor.parts == ["prepare", "launch", "wait", "scrap"]


def test_the_next_batch_is_prepared_while_the_device_computes() -> None:
    executor = FakeExecutor(8)
    decode_seconds(cast("Executor", executor), cast("Cache", FakeCache()), TOKENS[:, :2])
    assert executor.parts == ["prepare", "launch", "prepare", "wait", "launch", "wait", "scrap"]


def test_random_tokens_are_the_same_each_time() -> None:
    tokens = random_tokens(1000, 2, 500)
    assert (tokens.dtype, tokens.shape) == (np.int32, (2, 500))
    assert (tokens == random_tokens(1000, 2, 500)).all()
    assert (tokens != random_tokens(1000, 2, 500, seed=1)).any()
    assert 0 <= tokens.min() < 50
    assert 950 < tokens.max() < 1000


def test_random_tokens_are_those_of_splitmix64() -> None:
    """The first outputs for seed 0 as its reference implementation prints them (prng.di.unimi.it/splitmix64.c)."""
    outputs = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
    assert random_tokens(128_256, 1, 3).tolist() == [[output % 128_256 for output in outputs]]
