"""What does it cost to make room: to shift a full context, to share a prefix?

A cache of 8,192 tokens with the layers and heads of Llama 3.2 1B: 16 layers of 8 heads of 64, f16, 128 MiB of keys and
as much of values. One thread. The twins do the same with numpy arrays; llama.cpp rotates the keys of the whole cache
together with the next token, whose own time is subtracted. Run:
`python -m pytest bench/bench_shift.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.peer_llama import Llama
from bench.reported import report
from bench.shapes import THIN_1B
from ollama_engine.config import EngineConfig
from ollama_engine.input import Batch
from ollama_engine.kvcache import Cache
from ollama_engine.runner.load.loading import load

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

N_CELLS = 8192
SPARE = 256
LAYER = (N_CELLS, THIN_1B.n_head_kv, THIN_1B.head_dim)
SHIFT = f"shift a context of {N_CELLS} tokens by one"
SHARE = f"share a prefix of {N_CELLS // 2} tokens, and drop it"


def place(cache: Cache, sequence: int, begin: int, end: int) -> None:
    """Positions of a sequence, with whatever the memory holds: moving costs the same for all values."""
    for first in range(begin, end, 512):
        cache.begin(Batch.of([1] * min(512, end - first), first, sequence))


@pytest.fixture(scope="module")
def storage(thin_1b: str) -> Iterator[Cache]:
    config = EngineConfig(num_ctx=N_CELLS + SPARE, parallel=1, threads=1)
    with closing(load(thin_1b, config)) as loaded:
        yield loaded.cache


@pytest.fixture
def cache(storage: Cache) -> Iterator[Cache]:
    yield storage
    for sequence in range(2):
        storage.remove(sequence)


def test_shift(benchmark: BenchmarkFixture, cache: Cache) -> None:
    benchmark.group = SHIFT
    place(cache, 0, 0, N_CELLS)
    assert cache.shiftable is not None
    benchmark.pedantic(
        cache.shiftable.shift,
        args=(0, 0, 1),
        setup=lambda: place(cache, 0, N_CELLS, N_CELLS + 1),
        rounds=8,
        warmup_rounds=1,
    )


def turned(keys: NDArray[np.float16], cosine: float, sine: float) -> NDArray[np.float16]:
    """Adjacent pairs [cells, heads, dim] turned by one angle; the angle is no part of the cost."""
    x, y = keys[..., ::2].astype(np.float32), keys[..., 1::2].astype(np.float32)
    found = np.empty_like(keys)
    found[..., ::2] = x * cosine - y * sine
    found[..., 1::2] = x * sine + y * cosine
    return found


@pytest.mark.twin
def test_shift_numpy(benchmark: BenchmarkFixture) -> None:
    benchmark.group = SHIFT
    layers = [np.ones(LAYER, np.float16) for _ in range(THIN_1B.n_layer)]

    def shift() -> None:
        for keys in layers:
            keys[:] = turned(keys, np.cos(-1.0), np.sin(-1.0))

    benchmark.pedantic(shift, rounds=2)


@pytest.mark.peer
def test_shift_peer(benchmark: BenchmarkFixture, llama: Llama, thin_1b: str) -> None:
    benchmark.group = SHIFT
    with llama.model(thin_1b) as model, llama.context(model, N_CELLS, 512, threads=1) as context:
        for token in range(8):
            llama.decode(context, token)
        plain, shifted = [], []
        for _ in range(5):
            plain.append(timed(lambda: llama.decode(context, 1)))
            llama.shift(context)
            shifted.append(timed(lambda: llama.decode(context, 1)))
    report(benchmark, min(shifted) - min(plain))


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_share(benchmark: BenchmarkFixture, cache: Cache) -> None:
    benchmark.group = SHARE
    place(cache, 0, 0, N_CELLS)

    def share() -> None:
        cache.share(0, 1, N_CELLS // 2)
        cache.remove(1)

    benchmark(share)


def copy_rows(layers: list[NDArray[np.float16]]) -> None:
    for rows in layers:
        rows[: N_CELLS // 2] = rows[N_CELLS // 2 :]


@pytest.mark.twin
def test_share_numpy(benchmark: BenchmarkFixture) -> None:
    """Keys and values of all layers are copied, as one has to where a prefix cannot be shared."""
    benchmark.group = SHARE
    layers = [np.ones(LAYER, np.float16) for _ in range(2 * THIN_1B.n_layer)]
    benchmark.pedantic(copy_rows, args=(layers,), rounds=8, warmup_rounds=1)
