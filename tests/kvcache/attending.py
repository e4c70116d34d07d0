"""A causal cache with one attention graph around it, and the same in numpy."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine import nn
from ollama_engine.input import Batch
from ollama_engine.kvcache import CacheConfig, CausalCache, LayerShape
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from tests.kvcache.drawing import ints

KEY_DIM, VALUE_DIM, KV_HEADS, HEADS = 32, 64, 2, 4
Floats = NDArray[np.float32]


class Attending:
    """Feeds batches of random queries, keys and values to a cache, and remembers them for the twin.

    Numbers of a token depend on (sequence, position) alone, and differ between the two layers.
    """

    def __init__(self, cache: CausalCache, backend: Backend) -> None:
        self.cache = cache
        self._backend = backend

    def run(self, sequences: Sequence[int], positions: Sequence[int], spoil: float | None = None) -> Floats:
        """Attention of one batch in both layers, [2, n, HEADS, VALUE_DIM]; `spoil` replaces its keys and values."""
        n = len(positions)
        batch = Batch(ints([0] * n), ints(positions), ints(sequences), ints([n - 1]))
        self.cache.begin(batch)
        with Context(self._backend) as ctx:
            of_cache = self.cache.build_inputs(ctx)
            sizes = {"q": (KEY_DIM, HEADS, n), "k": (KEY_DIM, KV_HEADS, n), "v": (VALUE_DIM, KV_HEADS, n)}
            inputs = [{name: ctx.input("f32", size) for name, size in sizes.items()} for _ in range(2)]
            out = []
            for layer, tensors in enumerate(inputs):
                self.cache.set_layer(layer)
                self.cache.put(tensors["k"], tensors["v"])
                out.append(nn.attention(tensors["q"], self.cache, KEY_DIM**-0.5))
            ctx.forward(*out)
            ctx.alloc()
            for layer, tensors in enumerate(inputs):
                for name, tensor in tensors.items():
                    values = np.stack([numbers(name, layer, s, p) for s, p in zip(sequences, positions, strict=True)])
                    tensor.set(np.full_like(values, spoil) if spoil is not None and name != "q" else values)
            of_cache.write()
            ctx.compute()
            return np.stack([o.numpy().reshape(n, HEADS, VALUE_DIM) for o in out])

    def expected(self, sequences: Sequence[int], positions: Sequence[int], first: int = 0) -> Floats:
        """The same in numpy, for histories that begin at `first` and have no gaps."""
        window = self.cache.visibility.window or 1 << 30
        rows = [(s, range(max(first, p - window + 1), p + 1)) for s, p in zip(sequences, positions, strict=True)]
        return np.stack([np.stack([attend(layer, *row) for row in rows]) for layer in range(2)])


@functools.cache
def numbers(name: str, layer: int, sequence: int, position: int) -> Floats:
    """[heads, dim] of one token's query, key or value."""
    heads, dim = {"q": (HEADS, KEY_DIM), "k": (KV_HEADS, KEY_DIM), "v": (KV_HEADS, VALUE_DIM)}[name]
    rng = np.random.default_rng([ord(name), layer, sequence, position])
    return rng.standard_normal((heads, dim)).astype(np.float32)


def attend(layer: int, sequence: int, history: range) -> Floats:
    """Attention of the last token of `history`, [HEADS, VALUE_DIM]."""
    query = numbers("q", layer, sequence, history[-1])
    keys = np.stack([numbers("k", layer, sequence, p) for p in history]).repeat(HEADS // KV_HEADS, axis=1)
    values = np.stack([numbers("v", layer, sequence, p) for p in history]).repeat(HEADS // KV_HEADS, axis=1)
    scores = np.einsum("hd,phd->hp", query, keys) * KEY_DIM**-0.5
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("hp,phd->hd", weights, values)


@contextmanager
def attending(
    n_cells: int, *, padding: int = 32, window: int | None = None, chunk: int | None = None, **config: Any
) -> Iterator[Attending]:
    shape = LayerShape(kv_heads=KV_HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM, window=window, chunk=chunk)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        settings = CacheConfig(**{"dtype": "f32", "flash_attention": True, "history_padding": padding, **config})
        cache = CausalCache(backend, [shape] * 2, [0] * 2, n_cells, settings)
        yield Attending(cache, backend)
        cache.close()
