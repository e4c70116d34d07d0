"""How long does attention take when requests decode? ggml's flash attention with a mask over the cells of all of them,
and paged_attention with KV indices: alone, with the heads of Llama 3.2 1B and f16 keys and values, and in a step of the
demo model; 2 threads.

A single stream has contiguous cells; several streams have interleaved ones, as decoding leaves them. Run:
`python -m pytest bench/bench_attention.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ollama_engine import demo
from ollama_engine.config import EngineConfig
from ollama_engine.input import Batch
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.weights.kernel_choice import BY_TABLE
from ollama_engine.runner.load.loading import Loaded, load

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

HEADS, KV_HEADS, DIM = 32, 8, 64
CASES = [(1, 512), (1, 4096), (1, 16384), (8, 512), (8, 2048), (32, 512), (32, 2048)]
"""(streams, tokens of each)"""
LAYERS = 16
"""Layers of a model: keys and values of one would stay in the CPU's caches."""
LARGEST = 256 << 20
"""Bytes of keys and values; for the largest cases fewer layers are as good."""


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=min(2, os.cpu_count() or 1)), max_nodes=256) as two_threads:
        yield two_threads


def _layers(n_cells: int) -> int:
    return int(max(1, min(LAYERS, LARGEST // (n_cells * KV_HEADS * DIM * 4))))


def _masked(ctx: Context, streams: int, tokens: int) -> tuple[Tensor, ...]:
    mask = np.full((streams, streams * tokens), -np.inf, dtype=np.float16)
    for stream in range(streams):
        mask[stream, stream::streams] = 0
    return (ctx.from_floats(mask, dtype="f16"),)


def _paged(ctx: Context, streams: int, tokens: int) -> tuple[Tensor, ...]:
    begins = np.arange(streams) * tokens
    cells = np.arange(streams * tokens).reshape(tokens, streams).T
    return ctx.from_ints(np.stack([begins, begins + tokens], axis=1)), ctx.from_ints(cells.reshape(-1))


@pytest.mark.parametrize("kernel", [pytest.param("ggml", marks=pytest.mark.twin), "listed"])
@pytest.mark.parametrize(("streams", "tokens"), CASES)
def test_decoding(benchmark: BenchmarkFixture, backend: Backend, streams: int, tokens: int, kernel: str) -> None:
    n_cells = streams * tokens
    layers = _layers(n_cells)
    benchmark.group = f"attention of {layers} layers, {streams} streams of {tokens} tokens"
    numbers = np.random.default_rng(0)
    with Storage(backend, 2 * layers) as storage, Context(backend) as ctx:
        stored = [storage.add(f"{i}", "f16", (KV_HEADS * DIM, n_cells)) for i in range(2 * layers)]
        storage.allocate(0)
        values = numbers.normal(0, 1, (n_cells, KV_HEADS * DIM)).astype(np.float16)
        for tensor in stored:
            tensor.set(values)
        query = ctx.from_floats(numbers.normal(0, 1, (streams, HEADS, DIM)).astype(np.float32))
        seen = (_masked if kernel == "ggml" else _paged)(ctx, streams, tokens)
        attend = ops.flash_attention if kernel == "ggml" else ops.paged_attention
        history = [ops.view(t, (DIM, n_cells, KV_HEADS), (t.stride(1), DIM * 2), ctx=ctx) for t in stored]
        rows = ops.permute(query, 0, 2, 1, 3)
        for keys, values_ in zip(history[::2], history[1::2], strict=True):
            ctx.forward(attend(rows, keys, values_, *seen, scale=DIM**-0.5))
        ctx.alloc()
        benchmark.pedantic(ctx.compute, rounds=20, warmup_rounds=2)


# -- a whole step ------------------------------------------------------------------------------------------------------


@contextmanager
def loaded(streams: int, kernel: str) -> Iterator[Loaded]:
    """The demo, with lists or without."""
    kernels = replace(BY_TABLE, attention=kernel != "ggml")
    with closing(load(demo.path(), EngineConfig(num_ctx=512, parallel=streams, threads=2), kernels=kernels)) as parts:
        yield parts


@pytest.mark.parametrize("kernel", [pytest.param("ggml", marks=pytest.mark.twin), "listed"])
@pytest.mark.parametrize("tokens", [50, 200, 400])
@pytest.mark.parametrize("streams", [8, 32])
def test_step(benchmark: BenchmarkFixture, streams: int, tokens: int, kernel: str) -> None:
    """A step of the executor: cells, inputs and computing, without sampling."""
    benchmark.group = f"a step of the demo, {streams} streams of {tokens} tokens"
    rows = np.arange(streams, dtype=np.int32)
    batches = (Batch(np.full_like(rows, 7), np.full_like(rows, at), rows, rows) for at in range(512))
    with loaded(streams, kernel) as parts:
        for _ in range(tokens):
            parts.cache.begin(next(batches))  # keys and values are zero; speed does not depend on them
        benchmark.pedantic(lambda: parts.executor.run(next(batches)), rounds=40, warmup_rounds=2)
