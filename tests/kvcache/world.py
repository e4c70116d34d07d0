"""A causal cache whose keys are rotated as a model's are, beside dictionaries that say what it must hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine import nn
from ollama_engine.input import Batch
from ollama_engine.kvcache import CacheConfig, CausalCache, CellUsage, LayerShape, Visibility
from ollama_engine.kvcache.rotation import rotated
from ollama_engine.kvcache.shifting import CellShifter
from ollama_engine.kvcache.store import CellIndices
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from tests.kvcache.drawing import ints

LAYERS = (
    LayerShape(kv_heads=2, key_dim=32, value_dim=64),
    LayerShape(kv_heads=1, key_dim=64, value_dim=32),
)
FACTORS = [1.0] * 8 + [2.0, 4.0, 8.0, 8.0] * 2
ROPES = {
    "norm": nn.Rope(n_dims=32),
    "neox": nn.Rope(n_dims=32, mode="neox"),
    "partial": nn.Rope(n_dims=16, mode="neox"),
    "linear": nn.Rope(n_dims=32, scale=0.25),
    "factors": nn.Rope(n_dims=32, base=500000.0),
    "yarn": nn.Rope(n_dims=32, scale=0.25, original_context=64, ext_factor=1.0, attn_factor=0.9),
}
TOLERANCE = {"f32": 1e-4, "f16": 5e-3, "bf16": 4e-2, "q8_0": 4e-2, "q5_1": 0.3, "q5_0": 0.3, "q4_1": 0.5, "iq4_nl": 0.5,
             "q4_0": 0.5}  # fmt: skip
"""The error of normal numbers after one rounding to the type; each shift adds one."""


@dataclass
class Kept:
    """One token as it was put: shared cells are one object."""

    token: int
    shifts: int = 0
    owners: set[int] = field(default_factory=set)


class World:
    """`held[sequence][position]` is what must be found there."""

    def __init__(self, cache: CausalCache, backend: Backend, rope: str, memory: int) -> None:
        self.cache = cache
        self._memory = memory
        self.held: dict[int, dict[int, Kept]] = {}
        self._backend = backend
        self._rope = ROPES[rope]
        self._factors = _stored(backend, FACTORS) if rope == "factors" else None
        self._n_tokens = 0
        self.broken = False

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        if self.broken:
            raise RuntimeError("as if the device had failed")
        return self._rope.shifted(keys, deltas, self._factors)

    # -- steps, in the cache and in the dictionaries -------------------------------------------------------------------

    def append(self, rows: Sequence[tuple[int, int]]) -> None:
        """One batch of (sequence, position) with new tokens."""
        batch = Batch(ints([0] * len(rows)), ints(p for _, p in rows), ints(s for s, _ in rows), ints([0]))
        self.cache.begin(batch)
        tokens = range(self._n_tokens, self._n_tokens + len(rows))
        self._n_tokens += len(rows)
        with Context(self._backend) as ctx:
            self.cache.build_inputs(ctx)
            positions = ctx.from_ints(batch.positions)
            for layer in range(len(LAYERS)):
                self.cache.set_layer(layer)
                key, value = (ctx.from_floats(np.stack([raw(n, layer, t) for t in tokens])) for n in "kv")
                self.cache.put(self._rope(key, positions, self._factors), value)
            ctx.alloc()
            # The mask is for attention, of which there is none in this graph.
            self.cache._targets.set(self.cache._places)  # type: ignore[union-attr]
            ctx.compute()
        for (sequence, position), token in zip(rows, tokens, strict=True):
            self.held.setdefault(sequence, {})[position] = Kept(token, 0, {sequence})
        for sequence, history in self.held.items():
            first = min((p for s, p in rows if s == sequence), default=max(history, default=0) + 1)
            self._forget(sequence, range(self.cache.visibility.first_of(max(0, first - self._memory))).__contains__)

    @property
    def shifter(self) -> CellShifter:
        assert self.cache.shiftable is not None
        return self.cache.shiftable

    def share(self, source: int, target: int, end: int) -> None:
        self.cache.share(source, target, end)
        self.held[target] = {p: kept for p, kept in self.held.get(source, {}).items() if p < end}
        for kept in self.held[target].values():
            kept.owners.add(target)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        self.cache.remove(sequence, begin, end)
        self._forget(sequence, lambda p: p >= begin and (end is None or p < end))

    def _forget(self, sequence: int, chosen: Any) -> None:
        history = self.held.get(sequence, {})
        for position in [p for p in history if chosen(p)]:
            history.pop(position).owners.discard(sequence)

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        self.shifter.shift(sequence, begin, discard)
        self._forget(sequence, lambda p: begin <= p < begin + discard)
        moved = {}
        for position, kept in self.held.get(sequence, {}).items():
            if position < begin:
                moved[position] = kept
                continue
            own = kept
            if len(kept.owners) > 1:
                kept.owners.discard(sequence)
                own = Kept(kept.token, kept.shifts, {sequence})
            own.shifts += 1
            moved[position - discard] = own
        self.held[sequence] = moved

    def copies_for_shift(
        self, sequence: int, begin: int, discard: int, without: Collection[int] = ()
    ) -> tuple[int, int]:
        """(cells needed, cells free by then), had others been removed before."""
        history = self.held.get(sequence, {})

        def shared(kept: Kept) -> bool:
            return len(kept.owners - set(without)) > 1

        needed = sum(shared(kept) for p, kept in history.items() if p >= begin + discard)
        given = sum(not shared(kept) for p, kept in history.items() if begin <= p < begin + discard)
        used = sum(bool(kept.owners - set(without)) for kept in self.distinct)
        return needed, given + len(self.cache.cells) - used

    # -- comparing -----------------------------------------------------------------------------------------------------

    @property
    def distinct(self) -> list[Kept]:
        return list({id(kept): kept for history in self.held.values() for kept in history.values()}.values())

    def check(self) -> None:
        self.cache.check()
        assert len(self.cache.cells) - self.cache.cells.n_free == len(self.distinct)
        if self.cache.visibility == Visibility():
            shared = sum(len(kept.owners) > 1 for kept in self.distinct)
            assert self.cache.usage == CellUsage(len(self.distinct), self.cache.room, shared)
        wanted = [(s, p, kept) for s, history in self.held.items() for p, kept in history.items()]
        cells = [self._cell(s, p) for s, p, _ in wanted]
        if wanted:
            self._compare(wanted, cells)

    def _cell(self, sequence: int, position: int) -> int:
        cells, positions = self.cache.cells.of(sequence)
        found = cells[positions == position]
        assert len(found) == 1, f"sequence {sequence} has position {position} once"
        return int(found[0])

    def _compare(self, rows: list[tuple[int, int, Kept]], cells: list[int]) -> None:
        for layer, (keys, values) in enumerate(self.stored(cells)):
            turned = self._turned(layer, rows)
            for row, (_, _, kept) in enumerate(rows):
                tolerance = TOLERANCE[self.cache.config.dtype] * (1 + kept.shifts)
                assert np.abs(keys[row] - turned[row]).max() <= tolerance
                assert np.abs(values[row] - raw("v", layer, kept.token)).max() <= TOLERANCE[self.cache.config.dtype]

    def stored(self, cells: Sequence[int]) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Keys and values of these cells in each layer."""
        store = self.cache._store
        with Context(self._backend) as ctx:
            places = CellIndices(ctx, store, len(cells), "i32", "cells")
            pairs = [
                (rotated(store.read_keys(i, places), run), rotated(store.read_values(i, places), run))
                for i, run in enumerate(store.rotations)
            ]
            ctx.forward(*(tensor for pair in pairs for tensor in pair))
            ctx.alloc()
            places.set(ints(cells))
            ctx.compute()
            n = len(cells)
            return [
                (k.numpy().reshape(n, layer.kv_heads, -1), v.numpy().reshape(n, layer.kv_heads, -1))
                for (k, v), layer in zip(pairs, LAYERS, strict=True)
            ]

    def _turned(self, layer: int, rows: list[tuple[int, int, Kept]]) -> NDArray[np.float32]:
        """The same tokens' keys, rotated for their positions in one go."""
        with Context(self._backend) as ctx:
            keys = ctx.from_floats(np.stack([raw("k", layer, kept.token) for _, _, kept in rows]))
            out = self._rope(keys, ctx.from_ints([p for _, p, _ in rows]), self._factors)
            ctx.forward(out)
            ctx.compute()
            turned: NDArray[np.float32] = out.numpy().reshape(len(rows), LAYERS[layer].kv_heads, -1)
            return turned


def _stored(backend: Backend, values: list[float]) -> Tensor:
    storage = Storage(backend, 1)
    tensor = storage.add("factors", "f32", (len(values),))
    storage.allocate(0)
    tensor.set(np.array(values, dtype=np.float32))
    return tensor


def raw(name: str, layer: int, token: int) -> NDArray[np.float32]:
    """Key or value [kv_heads, dim] of a token, without position."""
    shape = LAYERS[layer]
    rng = np.random.default_rng([ord(name), layer, token])
    dim = shape.key_dim if name == "k" else shape.value_dim
    return rng.standard_normal((shape.kv_heads, dim)).astype(np.float32)


@contextmanager
def world(n_cells: int = 64, *, rope: str = "norm", memory: int = 0, **config: Any) -> Iterator[World]:
    limits = {name: config.pop(name) for name in ("window", "chunk") if name in config}
    settings = CacheConfig(**{"dtype": "f32", "flash_attention": True, "history_padding": 4, **config})
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        made: list[World] = []

        def shift_keys(layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
            return made[0].shift_keys(layer, keys, deltas)

        cache = CausalCache(
            backend, [replace(layer, **limits) for layer in LAYERS], [0, 0], n_cells, settings, memory=memory,
            shift_keys=shift_keys,
        )  # fmt: skip
        made.append(World(cache, backend, rope, memory))
        yield made[0]
        cache.close()
