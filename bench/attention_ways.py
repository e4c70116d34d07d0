"""Attention by each of the cache's ways: a mask over the run of cells, gathered keys and values, KV indices.

Two layers with the heads of Llama 3.2 1B, one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ollama_engine import nn
from ollama_engine.input import Batch
from ollama_engine.kvcache import CacheConfig, CausalCache, LayerShape
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context

HEADS, SHAPE = 32, LayerShape(kv_heads=8, key_dim=64, value_dim=64)
LAYERS = 2
WAYS: Mapping[str, Mapping[str, Any]] = {
    "masked": {"paged": False, "gathered_rows": None},
    "gathered": {"paged": False},
    "indices": {},
}
"""Options of the cache. "masked" is ggml's flash attention as llama.cpp calls it; the engine takes the last."""


@contextmanager
def filled(
    dtype: Any, way: str, *, by_turns: bool, n_sequences: int, n_tokens: int
) -> Iterator[tuple[CausalCache, Backend]]:
    """Some tokens of each of the sequences, whose keys and values are zero: speed does not depend on them.

    Their cells are interleaved, as decoding together leaves them, or contiguous.
    """
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


@contextmanager
def step(dtype: str, way: str, rows: Sequence[tuple[int, int]], **how: Any) -> Iterator[Callable[[], None]]:
    """A function that computes attention of all layers for rows of (sequence, position), behind `filled`'s tokens."""
    sequences, positions = np.array(rows, dtype=np.int32).T.copy()
    with filled(dtype, way, **how) as (cache, backend), Context(backend) as ctx:
        cache.begin(Batch(positions, positions, sequences, positions[:0]))
        inputs = cache.build_inputs(ctx)
        query, new = (
            ctx.from_floats(np.zeros((len(rows), heads, SHAPE.key_dim), dtype=np.float32))
            for heads in (HEADS, SHAPE.kv_heads)
        )
        for layer in range(LAYERS):
            cache.set_layer(layer)
            cache.put(new, new)
            ctx.forward(nn.attention(query, cache, SHAPE.key_dim**-0.5))
        ctx.alloc()

        def compute() -> None:
            inputs.write()
            ctx.compute()

        yield compute
