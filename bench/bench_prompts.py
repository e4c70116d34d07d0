"""How does prompt attention depend on the order of cells, on their type, and on requests that decode beside it? Each
of the cache's ways to attention: a mask over the run of cells, gathered keys and values, KV indices.

Two layers with the heads of Llama 3.2 1B, 8,192 tokens of 8 sequences, one thread. Their cells are interleaved, as
decoding together leaves them, or contiguous. Run:
`python -m pytest bench/bench_prompts.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ollama_engine import nn
from ollama_engine.input import Batch
from ollama_engine.kvcache import CacheConfig, CausalCache, LayerShape
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.placement import BackendParams

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

HEADS, SHAPE = 32, LayerShape(kv_heads=8, key_dim=64, value_dim=64)
SEQUENCES, TOKENS, LAYERS = 8, 1024, 2
WAYS: Mapping[str, Mapping[str, Any]] = {
    "masked": {"paged": False, "gathered_rows": None},
    "gathered": {"paged": False},
    "indices": {},
}
each_way = pytest.mark.parametrize("way", [pytest.param("masked", marks=pytest.mark.twin), "gathered", "indices"])


@contextmanager
def filled(
    dtype: Any, way: str, *, by_turns: bool, n_sequences: int = SEQUENCES, n_tokens: int = TOKENS
) -> Iterator[tuple[CausalCache, Backend]]:
    """Some tokens of each of the sequences, whose keys and values are zero: speed does not depend on them."""
    config = CacheConfig(dtype=dtype, flash_attention=True, sequences=n_sequences, **WAYS[way])
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = CausalCache(backend, [SHAPE] * LAYERS, [0] * LAYERS, 2 * n_sequences * n_tokens, config)
        table = np.mgrid[:n_tokens, :n_sequences] if by_turns else np.mgrid[:n_sequences, :n_tokens][::-1]
        positions, sequences = (numbers.reshape(-1).astype(np.int32) for numbers in table)
        for begin in range(0, len(positions), 512):
            rows = slice(begin, begin + 512)
            cache.begin(Batch(positions[rows], positions[rows], sequences[rows], positions[:0]))
        yield cache, backend
        cache.close()


def measure(benchmark: BenchmarkFixture, dtype: str, way: str, rows: list[tuple[int, int]], **how: Any) -> None:
    """Attention of all layers for rows of (sequence, position)."""
    sequences, positions = np.array(rows, dtype=np.int32).T.copy()
    with filled(dtype, way, **how) as (cache, backend), Context(backend) as ctx:
        cache.begin(Batch(positions, positions, sequences, positions[:0]))
        cache.build_inputs(ctx)
        query, new = (
            ctx.from_floats(np.zeros((len(rows), heads, SHAPE.key_dim), dtype=np.float32))
            for heads in (HEADS, SHAPE.kv_heads)
        )
        for layer in range(LAYERS):
            cache.set_layer(layer)
            cache.put(new, new)
            ctx.forward(nn.attention(query, cache, SHAPE.key_dim**-0.5))
        ctx.alloc()

        def step() -> None:
            cache.write_inputs()
            ctx.compute()

        benchmark.pedantic(step, rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("by_turns", [False, True], ids=["one after the other", "by turns"])
@each_way
def test_prompt(benchmark: BenchmarkFixture, way: str, by_turns: bool, dtype: str) -> None:
    lie = "by turns" if by_turns else "one after the other"
    benchmark.group = f"256 rows of a prompt behind {TOKENS} tokens, {dtype}, cells {lie}"
    measure(benchmark, dtype, way, [(0, TOKENS + i) for i in range(256)], by_turns=by_turns)


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("way", ["gathered", "indices"])
def test_deep(benchmark: BenchmarkFixture, way: str, dtype: str) -> None:
    behind = SEQUENCES * TOKENS
    benchmark.group = f"256 rows of a prompt behind {behind} tokens of one sequence, {dtype}"
    rows = [(0, behind + i) for i in range(256)]
    measure(benchmark, dtype, way, rows, by_turns=False, n_sequences=1, n_tokens=behind)


@each_way
def test_mixed(benchmark: BenchmarkFixture, way: str) -> None:
    """What a step of a busy engine is."""
    benchmark.group = f"64 rows of a prompt beside {SEQUENCES - 1} that decode, all behind {TOKENS} tokens"
    rows = [(0, TOKENS + i) for i in range(64)] + [(s, TOKENS) for s in range(1, SEQUENCES)]
    measure(benchmark, "f16", way, rows, by_turns=True)
