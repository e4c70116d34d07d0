"""Every kind of cache behind its contracts, fed through attention graphs and held against dictionaries.

Keys and values of a token depend on its number alone, not on its position: shifting turns nothing here, so that what a
token attends to is told by the dictionaries. (`world.py` is about what shifting does to keys.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache as remember
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine import nn
from ollama_engine.input import Batch, BatchMedia, MediaItem
from ollama_engine.kvcache import (
    Cache,
    CacheConfig,
    CompositeStepCache,
    LayerShape,
    StepCache,
    Visibility,
    make_cache,
    make_null_cache,
)
from ollama_engine.kvcache.cross_attention import CrossAttentionCache
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from tests.kvcache.drawing import ints
from tests.support.media import item

DIM, KV_HEADS, HEADS, IMAGE_ROWS, N_CELLS, N_IMAGES, MEMORY = 32, 2, 4, 3, 32, 4, 5
N_STATES, TAPS = 12, 3
"""Few enough that checkpoints are given up."""
Floats = NDArray[np.float32]
HEADS_OF: dict[str, Any] = {"kv_heads": KV_HEADS, "key_dim": DIM, "value_dim": DIM}
shape = partial(LayerShape, **HEADS_OF)
STATE = LayerShape(state=((HEADS * DIM, TAPS - 1),))
"""A layer with a causal convolution."""

LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "indices": {"dtype": "f32", "flash_attention": True},
    "gathered": {"dtype": "f32", "flash_attention": True, "paged": False, "gathered_rows": 1},
    "masks": {"dtype": "f32", "flash_attention": True, "paged": False, "gathered_rows": None},
    "permuted": {"dtype": "f32", "flash_attention": False, "paged": False},
    "f16": {"dtype": "f16", "flash_attention": True},
    "f16-permuted": {"dtype": "f16", "flash_attention": False, "paged": False},
    "q8_0": {"dtype": "q8_0", "flash_attention": True},
    "q8_0-gathered": {"dtype": "q8_0", "flash_attention": True, "paged": False, "gathered_rows": 1},
    "q8_0-masks": {"dtype": "q8_0", "flash_attention": True, "paged": False, "gathered_rows": None},
    "q5_1": {"dtype": "q5_1", "flash_attention": True},  # rotated
}
"""How keys and values are stored, and which way attention to them goes."""

TOLERANCE = {"f32": 1e-5, "f16": 1e-2, "q8_0": 5e-2, "q5_1": 0.5}
"""The error of an average of normal numbers whose keys and values are rounded to the type."""


@dataclass(frozen=True)
class Kind:
    """`layers` of a model whose cache keeps sequences."""

    name: str
    layers: tuple[LayerShape, ...]
    memory: int = 0
    shifts: bool = True

    @property
    def sees_images(self) -> bool:
        return any(layer.image_rows for layer in self.layers)

    def make(self, backend: Backend, layout: str) -> Cache:
        return make_cache(
            backend, self.layers, [0] * len(self.layers), CacheConfig(history_padding=4, **LAYOUTS[layout]),
            lambda layer: N_IMAGES if layer.image_rows else N_CELLS if layer.attends else N_STATES,
            memory=self.memory, shift_keys=_same if self.shifts else None,
        )  # fmt: skip

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class NullKind:
    """`layers` of a model of which nothing is stored."""

    name: str
    layers: tuple[LayerShape, ...]

    def make(self, backend: Backend, layout: str) -> StepCache:
        paged = LAYOUTS[layout].get("paged", True)
        return make_null_cache(
            self.layers, flash_attention=LAYOUTS[layout]["flash_attention"], causal=False, paged=paged
        )

    def __str__(self) -> str:
        return self.name


def _same(layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
    return keys


KINDS = (
    Kind("causal", (shape(), shape())),
    Kind("causal-unshiftable", (shape(),), shifts=False),
    Kind("window", (shape(window=6),)),
    Kind("window-of-one", (shape(window=1),)),
    Kind("window-memory", (shape(window=4),), memory=MEMORY),
    Kind("chunk", (shape(chunk=5),)),
    Kind("chunk-memory", (shape(chunk=4),), memory=MEMORY),
    Kind("window-and-full", (shape(window=4), shape(), shape(window=4)), memory=MEMORY),
    Kind("chunk-full-window", (shape(chunk=4), shape(), shape(window=3))),
    Kind("latent-and-full", (shape(latent=True), shape(), shape(latent=True))),
    Kind("recurrent-and-full", (shape(), STATE, replace(STATE, **HEADS_OF)), shifts=False),
    Kind("images-and-full", (shape(), shape(image_rows=IMAGE_ROWS), shape(), shape(image_rows=IMAGE_ROWS))),
)
NULL_KINDS = (
    NullKind("null", (shape(), shape())),
    NullKind("null-window", (shape(window=4),)),
    NullKind("null-recurrent", (STATE, shape(), replace(STATE, **HEADS_OF))),
)


class Steps:
    """Steps of any cache, whose attention must be that of `tokens[sequence][position]` and `images`."""

    def __init__(self, kind: Kind | NullKind, cache: StepCache, backend: Backend, layout: str) -> None:
        self.kind = kind
        self.step_cache = cache
        self.tokens: dict[int, dict[int, int]] = {}
        self.images: dict[int, dict[int, int]] = {}
        self.backend = backend
        self._tolerance = TOLERANCE[LAYOUTS[layout]["dtype"]]
        self._n_tokens = 0

    def batch(
        self, rows: Sequence[tuple[int, int]], images: Sequence[int] = (), blocks: Sequence[int] | None = None
    ) -> Batch:
        """New tokens at (sequence, position); an image comes with some of the rows, `blocks` as of Batch."""
        tokens = range(self._n_tokens, self._n_tokens + len(rows))
        return Batch(
            ints(tokens), ints(p for _, p in rows), ints(s for s, _ in rows), ints([0]), images=ints(images),
            blocks=None if blocks is None else ints(blocks),
            media=tuple(BatchMedia(row, 1, picture(tokens[row])) for row in images),
            checkpoints=ints(i for i, (_, p) in enumerate(rows) if p % 4 == 3),
            in_place=len({s for s, _ in rows}) == len(rows),
        )  # fmt: skip

    def feed(
        self, rows: Sequence[tuple[int, int]], images: Sequence[int] = (), blocks: Sequence[int] | None = None
    ) -> None:
        """One step, whose attention must be what the dictionaries say in every layer."""
        batch = self.batch(rows, images, blocks)
        self.step_cache.begin(batch)
        self._n_tokens += len(rows)
        for i, (sequence, position) in enumerate(rows):
            self.tokens.setdefault(sequence, {})[position] = int(batch.tokens[i])
            if i in images:
                self.images.setdefault(sequence, {})[position] = int(batch.tokens[i])
        found = self.compute(batch)
        for layer, out in enumerate(found):
            for row, (sequence, position) in enumerate(rows):
                expected = self.expected(layer, row, rows, blocks)
                error = np.abs(out[row] - expected).max()
                assert error <= self._tolerance, f"layer {layer}, {sequence=}, {position=}"

    def compute(self, batch: Batch) -> list[Floats]:
        with Context(self.backend) as ctx:
            inputs = self.step_cache.build_inputs(ctx)
            outputs = [self.layer(ctx, layer, batch) for layer in range(len(self.kind.layers))]
            shown = [out for out in outputs if out is not None]
            ctx.forward(*shown)
            ctx.alloc()
            inputs.write()
            ctx.compute()
            nothing = np.zeros((len(batch), HEADS, DIM), dtype=np.float32)
            return [nothing if out is None else out.numpy().reshape(nothing.shape) for out in outputs]

    def layer(self, ctx: Context, layer: int, batch: Batch) -> Tensor | None:
        """The graph of one layer's attention; None where no token sees an image."""
        self.step_cache.set_layer(layer)
        query = ctx.from_floats(np.stack([numbers("q", layer, int(t)) for t in batch.tokens]))
        composite, view = isinstance(self.step_cache, CompositeStepCache), self.step_cache
        if composite and self.kind.layers[layer].attends:
            view = self.step_cache.current
        if isinstance(view, CrossAttentionCache):
            return self._image_layer(ctx, layer, batch, query, view)
        where, out = self.kind.layers[layer], None
        if where.state:
            out = convolved(ctx, layer, ops.reshape(query, HEADS * DIM, len(batch)), self.step_cache)
        if not where.attends:
            return out
        key, value = (ctx.from_floats(np.stack([numbers(n, layer, int(t)) for t in batch.tokens])) for n in kv(where))
        self.step_cache.put(key, value)
        attention = nn.attention(query, self.step_cache, DIM**-0.5)
        return attention if out is None else attention + out

    def _image_layer(
        self, ctx: Context, layer: int, batch: Batch, query: Tensor, view: CrossAttentionCache
    ) -> Tensor | None:
        if view.new_rows:
            assert batch.images is not None
            put = [int(batch.tokens[row]) for row in batch.images]
            key, value = (ctx.from_floats(np.concatenate([image(n, layer, t)[: length(t)] for t in put])) for n in "kv")
            view.put(key, value)
        return nn.attention(query, view, DIM**-0.5) * view.gate if view.sees_images else None

    def expected(
        self, layer: int, row: int, rows: Sequence[tuple[int, int]], blocks: Sequence[int] | None = None
    ) -> Floats:
        """What a layer gives for a row of the batch, [HEADS, DIM]."""
        sequence, position = rows[row]
        tokens, where = self.tokens[sequence], self.kind.layers[layer]
        if isinstance(self.kind, NullKind):
            tokens = {p: tokens[p] for s, p in rows if s == sequence}
        if not where.attends:
            return convolution(layer, tokens, position)
        attention = self.attention(layer, row, rows, blocks)
        return attention + convolution(layer, tokens, position) if where.state else attention

    def attention(
        self, layer: int, row: int, rows: Sequence[tuple[int, int]], blocks: Sequence[int] | None = None
    ) -> Floats:
        """Attention of a row of the batch, [HEADS, DIM]."""
        sequence, position = rows[row]
        tokens, where = self.tokens[sequence], self.kind.layers[layer]
        query = numbers("q", layer, tokens[position])
        if where.image_rows is not None:
            pictures = seen_images(self.images.get(sequence, {}), position)
            if not pictures:
                return np.zeros((HEADS, DIM), dtype=np.float32)
            keys, values = (np.concatenate([image(n, layer, t)[: length(t)] for t in pictures]) for n in "kv")
            return attend(query, keys, values)
        if isinstance(self.kind, NullKind):
            reach = 1 << 30 if where.window is None else where.window // 2
            seen = [p for s, p in rows if s == sequence and abs(p - position) <= reach]
        else:
            first = Visibility(window=where.window, chunk=where.chunk).first_of(position)
            seen = [p for p in tokens if first <= p <= _last(row, rows, blocks)]
        keys, values = (np.stack([numbers(n, layer, tokens[p]) for p in seen]) for n in kv(where))
        return attend(query, keys, values)


def _last(row: int, rows: Sequence[tuple[int, int]], blocks: Sequence[int] | None) -> int:
    """The highest position that a row sees: its own, or the last of its block."""
    sequence, position = rows[row]
    if blocks is None or blocks[row] < 0:
        return position
    return max(p for (s, p), block in zip(rows, blocks, strict=True) if (s, block) == (sequence, blocks[row]))


class Fed(Steps):
    """A cache that keeps sequences."""

    def __init__(self, kind: Kind, cache: Cache, backend: Backend, layout: str = "indices") -> None:
        super().__init__(kind, cache, backend, layout)
        self.cache = cache

    def share(self, source: int, target: int, end: int) -> None:
        self.cache.share(source, target, end)
        for table in (self.tokens, self.images):
            table[target] = {p: token for p, token in table.get(source, {}).items() if p < end}

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        self.cache.remove(sequence, begin, end)
        for table in (self.tokens, self.images):
            kept = table.get(sequence, {}).items()
            table[sequence] = {p: token for p, token in kept if p < begin or (end is not None and p >= end)}

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        assert self.cache.shiftable is not None
        self.cache.shiftable.shift(sequence, begin, discard)
        for table in (self.tokens, self.images):
            kept = [(p, t) for p, t in table.get(sequence, {}).items() if not begin <= p < begin + discard]
            table[sequence] = {p if p < begin else p - discard: token for p, token in kept}

    def restore(self, saved: Any, source: int, target: int, origin: Fed | None = None) -> None:
        """A sequence's rows that were saved, here or in another cache."""
        assert self.cache.saveable is not None
        self.cache.saveable.restore(target, saved)
        origin = self if origin is None else origin
        self.tokens[target] = dict(origin.tokens.get(source, {}))
        self.images[target] = dict(origin.images.get(source, {}))

    def next_position(self, sequence: int) -> int:
        return max(self.tokens.get(sequence, {}), default=-1) + 1


def kv(layer: LayerShape) -> str:
    """Names of a layer's keys and values; with latent attention they are the same numbers."""
    return "kk" if layer.latent else "kv"


@remember
def numbers(name: str, layer: int, token: int) -> Floats:
    """[heads, DIM] of one token's query, key or value."""
    rng = np.random.default_rng([ord(name), layer, token])
    return rng.standard_normal((HEADS if name == "q" else KV_HEADS, DIM)).astype(np.float32)


def convolved(ctx: Context, layer: int, x: Tensor, cache: StepCache) -> Tensor:
    """The graph of a layer's convolution."""
    scope = nn.Scope({"conv.weight": ctx.from_floats(taps(layer))}, None)
    out: Tensor = nn.CausalConv("conv", TAPS, HEADS * DIM).bind(scope)(x, cache)
    return out


@remember
def taps(layer: int) -> Floats:
    """[channels, taps]"""
    return np.random.default_rng([5, layer]).standard_normal((HEADS * DIM, TAPS)).astype(np.float32) / TAPS


def convolution(layer: int, tokens: Mapping[int, int], position: int) -> Floats:
    """The convolution of the tokens up to a position, [HEADS, DIM]."""
    seen = [p for p in range(position - TAPS + 1, position + 1) if p in tokens]
    rows = np.stack([numbers("q", layer, tokens[p]).reshape(-1) for p in seen])
    out: Floats = (rows * taps(layer).T[-len(seen) :]).sum(axis=0).reshape(HEADS, DIM)
    return out


def image(name: str, layer: int, token: int) -> Floats:
    """[IMAGE_ROWS, KV_HEADS, DIM] of one image's keys or values."""
    return np.stack([numbers(name, layer, 1000 * (1 + row) + token) for row in range(IMAGE_ROWS)])


def length(token: int) -> int:
    """Rows of an image that are seen; what is stored behind them is not."""
    return 1 + token % IMAGE_ROWS


def picture(token: int) -> MediaItem:
    """The item of an image, as far as a cache asks."""
    return replace(item(token, 1, cross_attention=True), n_rows=length(token))


def seen_images(images: Mapping[int, int], position: int) -> list[int]:
    """The latest image up to a position, and those before it without a token between them."""
    at = max((p for p in images if p <= position), default=position)
    run: list[int] = []
    while at in images:
        run.insert(0, images[at])
        at -= 1
    return run


def attend(query: Floats, keys: Floats, values: Floats) -> Floats:
    """[HEADS, DIM] of one query [HEADS, DIM] over keys and values [n, KV_HEADS, DIM]."""
    keys, values = (x.repeat(HEADS // KV_HEADS, axis=1) for x in (keys, values))
    scores = np.einsum("hd,nhd->hn", query, keys) * DIM**-0.5
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    out: Floats = np.einsum("hn,nhd->hd", weights / weights.sum(axis=1, keepdims=True), values)
    return out


@contextmanager
def fed(kind: Kind, layout: str = "indices") -> Iterator[Fed]:
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = kind.make(backend, layout)
        yield Fed(kind, cache, backend, layout)
        cache.close()


@contextmanager
def stepped(kind: Kind | NullKind, layout: str = "indices") -> Iterator[Steps]:
    """For what is asked of any cache."""
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        yield Steps(kind, kind.make(backend, layout), backend, layout)


def run(sequence: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(sequence, position) for position in range(begin, end)]


def answers(cache: Cache, sequences: Sequence[int] = (0, 1, 2)) -> Any:
    """All that can be asked without changing anything."""
    resumable = [(s, p) for s in sequences for p in range(N_CELLS) if cache.can_resume(s, p)]
    return cache.usage, resumable
