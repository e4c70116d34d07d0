"""Composite caches: one cache for each kind of layer, behind the contract of a single cache."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, TypeVar, cast

from ollama_engine.input import Batch
from ollama_engine.kvcache.base import (
    Cache,
    CellUsage,
    GraphInputs,
    KVIndices,
    OutputIndices,
    Saveable,
    Shiftable,
    StateView,
    StepCache,
)
from ollama_engine.kvcache.composite_packing import CompositePacker
from ollama_engine.kvcache.rows import SavedRows, Saving
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

CacheT = TypeVar("CacheT", bound=StepCache)


Places = tuple[tuple[int, int], ...]
"""Where a layer is stored: (index of a cache, layer within that cache). Nowhere, in one cache, or in two where it has
both keys and values and a recurrent state; the cache of states comes last."""


class CompositeStepCache(Generic[CacheT]):
    """Caches of one step. `table` says for each layer where it is stored; `states`: index of the cache of states."""

    def __init__(self, caches: Sequence[CacheT], table: Sequence[Places], states: int | None = None) -> None:
        self.caches = tuple(caches)
        self._table = tuple(tuple((self.caches[number], layer) for number, layer in places) for places in table)
        self._states = None if states is None else self.caches[states]
        self._current: CacheT | None = None

    # ** used by models ************************************************************************************************

    @property
    def flash_attention(self) -> bool:
        """Whether `get` returns values in flash attention's layout; all caches with keys and values agree on that."""
        return any(cache.flash_attention for cache in self.caches)

    @property
    def rotation(self) -> int:
        """Of the current layer."""
        return self.current.rotation

    @property
    def current(self) -> CacheT:
        """The cache of the current layer's keys and values; models with cross-attention ask it about images."""
        assert self._current is not None, "a layer with keys and values is set first"
        return self._current

    @property
    def states(self) -> StateView:
        """The states of the current layer. Raises ValueError where no layer has any."""
        if self._states is None:
            raise ValueError("no layer of this cache has a recurrent state")
        return cast("StateView", self._states)

    def set_layer(self, layer: int) -> None:
        places = self._table[layer]
        self._current = places[0][0] if places else None
        for cache, number in places:
            cache.set_layer(number)

    def put(self, key: Tensor, value: Tensor) -> None:
        self.current.put(key, value)

    def get(self) -> tuple[Tensor, Tensor, Tensor | KVIndices]:
        """Keys and values of the current layer, and its mask or indices."""
        return self.current.get()

    def output_indices(self, n: int) -> KVIndices | None:
        """See `OutputIndices`."""
        current = self.current
        return current.output_indices(n) if isinstance(current, OutputIndices) else None

    def places(self, layer: int) -> tuple[tuple[CacheT, int], ...]:
        """(a cache, the number in it) for each place where a layer is stored."""
        return self._table[layer]

    # ** used by the executor ******************************************************************************************

    def begin(self, batch: Batch) -> None:
        for cache in self.caches:
            cache.begin(batch)

    def roll_back(self, batch: Batch) -> None:
        for cache in self.caches:
            cache.roll_back(batch)

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """Prepare for every combination of the caches' worst-case graphs in turn."""
        yield from self._worst_cases(n_tokens, self.caches)

    def _worst_cases(self, n_tokens: int, caches: Sequence[CacheT]) -> Iterator[None]:
        if not caches:
            yield
            return
        for _ in caches[0].worst_cases(n_tokens):
            yield from self._worst_cases(n_tokens, caches[1:])

    @property
    def shape_key(self) -> tuple[int, ...]:
        return tuple(number for cache in self.caches for number in cache.shape_key)

    def build_inputs(self, ctx: Context) -> GraphInputs:
        parts = [cache.build_inputs(ctx) for cache in self.caches]

        def write() -> None:
            for part in parts:
                part.write()

        return GraphInputs(tuple(seen for part in parts for seen in part.seen), write)


class CompositeCache(CompositeStepCache[Cache]):
    """Several caches as one. A call that one cache refuses changes none of them.

    A composite of no caches is the cache of a model without attention: everything fits, and it holds nothing.
    """

    def __init__(self, caches: Sequence[Cache], table: Sequence[Places], states: int | None = None) -> None:
        super().__init__(caches, table, states)
        self.recurrent = None if states is None else self.caches[states].recurrent
        shiftables = [cache.shiftable for cache in self.caches if cache.shiftable is not None]
        saveables = [cache.saveable for cache in self.caches if cache.saveable is not None]
        n = len(self.caches)
        self.shiftable = _CompositeShifter(self, shiftables) if n and len(shiftables) == n else None
        self.saveable = _CompositeSaver(self, saveables) if n and len(saveables) == n else None
        packers = [cache.defragmentable for cache in self.caches if cache.defragmentable is not None]
        self.defragmentable = CompositePacker(packers) if packers else None

    def begin(self, batch: Batch) -> None:
        """Find cells in all caches. Raises ContextOverflowError, changing nothing, when one has too few."""
        for cache in self.caches[1:]:  # the first one asks itself, before anything has changed
            cache.require_room(batch)
        super().begin(batch)

    # ** used by the runner ********************************************************************************************

    @property
    def room(self) -> int:
        return min((cache.room for cache in self.caches), default=sys.maxsize)

    def require_room(self, batch: Batch) -> None:
        for cache in self.caches:
            cache.require_room(batch)

    def share(self, source: int, target: int, end: int) -> None:
        for cache in self.caches:
            cache.share(source, target, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        return all(cache.can_resume(sequence, position) for cache in self.caches)

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        for cache in self.caches:
            cache.remove(sequence, begin, end)

    def scrub(self) -> None:
        for cache in self.caches:
            cache.scrub()

    def check(self) -> None:
        for cache in self.caches:
            cache.check()

    @property
    def usage(self) -> CellUsage:
        """The usage of the fullest cache."""
        usages = (cache.usage for cache in self.caches)
        return max(usages, key=lambda u: u.used / max(1, u.used + u.free), default=CellUsage())

    @property
    def nbytes(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for cache in self.caches:
            total.update(cache.nbytes)
        return dict(total)

    @property
    def mask_bytes(self) -> int:
        return sum(cache.mask_bytes for cache in self.caches)

    def close(self) -> None:
        for cache in self.caches:
            cache.close()


class _CompositeShifter:
    """Shifts all caches or none. See `Shiftable`."""

    def __init__(self, cache: CompositeCache, shiftables: Sequence[Shiftable]) -> None:
        self._cache = cache
        self._shiftables = tuple(shiftables)

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        for shiftable in self._shiftables:
            shiftable.require_shift(sequence, begin, discard, without)

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        self.require_shift(sequence, begin, discard)
        try:
            for shiftable in self._shiftables:
                shiftable.shift(sequence, begin, discard)
        except BaseException:
            # Some have shifted and some have not.
            self._cache.remove(sequence, begin)
            raise

    def reserve(self) -> None:
        for shiftable in self._shiftables:
            shiftable.reserve()


class _CompositeSaver:
    """Saves the rows of all caches, one cache after the other. See `Saveable`."""

    def __init__(self, cache: CompositeCache, saveables: Sequence[Saveable]) -> None:
        self._cache = cache
        self._saveables = tuple(saveables)

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(kind for saveable in self._saveables for kind in saveable.row_bytes)

    def first_seen(self, position: int) -> tuple[int, ...]:
        return tuple(first for saveable in self._saveables for first in saveable.first_seen(position))

    @property
    def image_kinds(self) -> tuple[int, ...]:
        kinds, first = list[int](), 0
        for saveable in self._saveables:
            kinds += (first + kind for kind in saveable.image_kinds)
            first += len(saveable.row_bytes)
        return tuple(kinds)

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> list[SavedRows]:
        return [kind for saveable in self._saveables for kind in saveable.save(sequence, begin, end)]

    def saving(self, sequence: int, begin: int = 0, end: int | None = None) -> Saving:
        kinds: list[SavedRows] = []
        for saveable in self._saveables:
            kinds += yield from saveable.saving(sequence, begin, end)
        return kinds

    def _shared_out(self, saved: Sequence[SavedRows]) -> Iterator[tuple[Saveable, Sequence[SavedRows]]]:
        begin = 0
        for saveable in self._saveables:
            end = begin + len(saveable.row_bytes)
            yield saveable, saved[begin:end]
            begin = end

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        for saveable, kinds in self._shared_out(saved):
            saveable.require_restore(kinds, without)

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        self.require_restore(saved)
        try:
            for saveable, kinds in self._shared_out(saved):
                saveable.restore(sequence, kinds)
        except BaseException:
            # Some have it and some have not.
            self._cache.remove(sequence, min(int(kind.positions[0]) for kind in saved if len(kind.positions)))
            raise

    def reserve(self) -> None:
        for saveable in self._saveables:
            saveable.reserve()
