"""Composite cache: layers of different kinds, each kind with a cache of its own, behind one contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from ollama_engine.errors import ConfigError
from ollama_engine.input import Batch
from ollama_engine.kvcache.base import Cache, CellUsage, KVIndices
from ollama_engine.kvcache.causal import CausalCache
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.move import ShiftKeys
from ollama_engine.kvcache.rows import SavedRows
from ollama_engine.kvcache.visibility import Visibility
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.tensor import Tensor


class CompositeCache:
    """`table[layer]` is (which of `caches`, layer within it). What one refuses, none of them has done."""

    def __init__(self, caches: Sequence[Cache], table: Sequence[tuple[int, int]]) -> None:
        self.caches = tuple(caches)
        self._table = tuple((self.caches[number], layer) for number, layer in table)
        self._current = self.caches[0]

    # ** used by the runner ********************************************************************************************

    @property
    def room(self) -> int:
        """Tokens that all caches have room for."""
        return min(cache.room for cache in self.caches)

    def require_room(self, batch: Batch) -> None:
        """Raise ContextOverflowError where `begin` would. Changes nothing."""
        for cache in self.caches:
            cache.require_room(batch)

    def begin(self, batch: Batch) -> None:
        """Find cells in all caches. Raises ContextOverflowError, changing nothing, when one has too few."""
        self.require_room(batch)
        for cache in self.caches:
            cache.begin(batch)

    def begin_reserve(self, n_tokens: int) -> None:
        """Prepare all caches for building a worst-case graph."""
        for cache in self.caches:
            cache.begin_reserve(n_tokens)

    @property
    def shape_key(self) -> tuple[int, ...]:
        """The keys of all caches."""
        return tuple(number for cache in self.caches for number in cache.shape_key)

    def build_inputs(self, ctx: Context) -> None:
        """Make the inputs of all caches."""
        for cache in self.caches:
            cache.build_inputs(ctx)

    def write_inputs(self) -> None:
        """Write the inputs of all caches."""
        for cache in self.caches:
            cache.write_inputs()

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target`, which is empty, have what `source` has below position `end`."""
        for cache in self.caches:
            cache.share(source, target, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether all caches have what a token at `position` attends to."""
        return all(cache.can_resume(sequence, position) for cache in self.caches)

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget tokens of a sequence, from position `begin` to before `end`."""
        for cache in self.caches:
            cache.remove(sequence, begin, end)

    @property
    def can_shift(self) -> bool:
        """Whether all caches can."""
        return all(cache.can_shift for cache in self.caches)

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError or ValueError where `shift` would. Changes nothing."""
        for cache in self.caches:
            cache.require_shift(sequence, begin, discard, without)

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget `discard` positions from `begin` on; those that follow move down by as many. See `Cache.shift`."""
        self.require_shift(sequence, begin, discard)
        try:
            for cache in self.caches:
                cache.shift(sequence, begin, discard)
        except BaseException:
            # Some have shifted and some have not.
            self.remove(sequence, begin)
            raise

    def defrag(self) -> int:
        """Move used cells into the holes below them; returns how many were moved in all caches."""
        return sum(cache.defrag() for cache in self.caches)

    def reserve_moves(self) -> None:
        """Take the memory for `shift` and `defrag` now. Raises NoMemoryError."""
        for cache in self.caches:
            cache.reserve_moves()

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Those of all caches."""
        return tuple(kind for cache in self.caches for kind in cache.row_bytes)

    def save(self, sequence: int) -> list[SavedRows]:
        """What all caches have of a sequence."""
        return [part for cache in self.caches for part in cache.save(sequence)]

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError where `restore` would. Changes nothing."""
        for cache, parts in self._shared_out(saved):
            cache.require_restore(parts, without)

    def _shared_out(self, saved: Sequence[SavedRows]) -> Iterator[tuple[Cache, Sequence[SavedRows]]]:
        """To each cache what is its own."""
        begin = 0
        for cache in self.caches:
            end = begin + len(cache.row_bytes)
            yield cache, saved[begin:end]
            begin = end

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        """Give `sequence`, which is empty, what `save` gave. See `Cache.restore`."""
        try:
            for cache, parts in self._shared_out(saved):
                cache.restore(sequence, parts)
        except BaseException:
            # Some have it and some have not.
            self.remove(sequence)
            raise

    def scrub(self) -> None:
        """Zero the free cells."""
        for cache in self.caches:
            cache.scrub()

    def check(self) -> None:
        """Raise AssertionError unless all caches are consistent."""
        for cache in self.caches:
            cache.check()

    @property
    def usage(self) -> CellUsage:
        """That of the fullest cache."""
        return max((cache.usage for cache in self.caches), key=lambda u: u.used / max(1, u.used + u.free))

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory taken by all, {device name: bytes}."""
        total: Counter[str] = Counter()
        for cache in self.caches:
            total.update(cache.nbytes)
        return dict(total)

    @property
    def mask_bytes(self) -> int:
        """Memory of the process in which masks are made."""
        return sum(cache.mask_bytes for cache in self.caches)

    def close(self) -> None:
        """Free the memory."""
        for cache in self.caches:
            cache.close()

    # ** used by models ************************************************************************************************

    @property
    def flash_attention(self) -> bool:
        """Whether values of the current layer come as flash attention reads them."""
        return self._current.flash_attention

    @property
    def current(self) -> Cache:
        """The cache of the current layer; models with cross-attention ask it about images."""
        return self._current

    def set_layer(self, layer: int) -> None:
        """Choose the layer that `put` and `get` speak of."""
        self._current, number = self._table[layer]
        self._current.set_layer(number)

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys and values of the current layer."""
        self._current.put(key, value)

    def get(self) -> tuple[Tensor, Tensor, Tensor | KVIndices]:
        """Keys and values of the current layer, and its mask or lists."""
        return self._current.get()


def make_cache(
    backend: Backend,
    layers: Sequence[LayerShape],
    devices: Sequence[int],
    config: CacheConfig,
    size: Callable[[LayerShape], int],
    *,
    memory: int = 0,
    shift_keys: ShiftKeys | None = None,
) -> Cache:
    """The cache for a model's layers: one for each kind of layer, behind a composite where there are several.

    `size` says how many cells a kind gets, or images for cross-attention. Windows and chunks can be resumed up to
    `memory` positions back. Raises NoMemoryError, with nothing taken, and ConfigError.
    """
    groups = _by_kind(layers)
    caches: list[Cache] = []
    try:
        for numbers in groups.values():
            shapes, places = [layers[i] for i in numbers], [devices[i] for i in numbers]
            if shapes[0].image_rows is not None:
                from ollama_engine.kvcache.cross_attention import CrossAttentionCache  # noqa: PLC0415 (few models see images)

                caches.append(CrossAttentionCache(backend, shapes, places, size(shapes[0]), config))
            else:
                shift = None if shift_keys is None else _of_layers(shift_keys, numbers)
                caches.append(
                    CausalCache(backend, shapes, places, size(shapes[0]), config, memory=memory, shift_keys=shift)
                )
    except BaseException:
        for cache in caches:
            cache.close()
        raise
    return _joined(caches, list(groups.values()))


def make_null_cache(layers: Sequence[LayerShape], *, flash_attention: bool, causal: bool) -> Cache:
    """The cache for layers of which nothing is stored: every text is in one batch. See `NullCache`.

    Raises ConfigError for layers that attend to images, which nothing else holds.
    """
    if any(layer.image_rows is not None for layer in layers):
        raise ConfigError("a model with cross-attention to images gives no embeddings here")
    from ollama_engine.kvcache.null import NullCache  # noqa: PLC0415 (who only writes has none)

    groups = _by_kind(layers)
    caches: list[Cache] = []
    for window, chunk, _ in groups:
        if causal:
            caches.append(NullCache(flash_attention=flash_attention, causal=Visibility(window=window, chunk=chunk)))
        else:
            caches.append(NullCache(flash_attention=flash_attention, window=window))
    return _joined(caches, list(groups.values()))


Kind = tuple[int | None, int | None, int | None]


def _by_kind(layers: Sequence[LayerShape]) -> dict[Kind, list[int]]:
    """The numbers of the layers of each kind."""
    kinds = [(layer.window, layer.chunk, layer.image_rows) for layer in layers]
    return {kind: [i for i, other in enumerate(kinds) if other == kind] for kind in dict.fromkeys(kinds)}


def _joined(caches: Sequence[Cache], groups: Sequence[list[int]]) -> Cache:
    """One cache for all layers, of one for each group of them."""
    if len(caches) == 1:
        return caches[0]
    places = {layer: (i, at) for i, group in enumerate(groups) for at, layer in enumerate(group)}
    return CompositeCache(caches, [places[layer] for layer in sorted(places)])


def _of_layers(shift_keys: ShiftKeys, numbers: Sequence[int]) -> ShiftKeys:
    """`shift_keys` for a cache that counts its own layers only."""
    return lambda layer, keys, deltas: shift_keys(numbers[layer], keys, deltas)
