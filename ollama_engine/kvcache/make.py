"""Makes the cache for a model's layers: one cache for each kind of layer, joined by a composite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ollama_engine.kvcache.base import Cache, StepCache
from ollama_engine.kvcache.causal import CausalCache
from ollama_engine.kvcache.composite import CompositeCache, CompositeStepCache, Places
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.move import ShiftKeys
from ollama_engine.kvcache.no_images import NoImages
from ollama_engine.kvcache.null import NullCache
from ollama_engine.kvcache.null_paged import PagedNullCache
from ollama_engine.kvcache.recurrent import RecurrentCache, RecurrentStepCache
from ollama_engine.kvcache.visibility import Visibility
from ollama_engine.ml.graph.backend import Backend


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
    """The cache that the runner uses; without layers, an empty composite.

    `size` gives the number of cells for a kind of layer, of images for cross-attention, of states for recurrent layers.
    Layers with a window or chunk can be resumed up to `memory` positions back. Raises NoMemoryError, with nothing
    taken, and ConfigError.
    """
    groups = _by_kind(layers)
    caches: list[Cache] = []
    try:
        for kind, numbers in groups.items():
            shapes, places = [layers[i] for i in numbers], [devices[i] for i in numbers]
            if kind == STATES:
                # On the CPU, wherever the layers are: recurrent operations are ours, and write states in place.
                host = [len(backend.devices) - 1] * len(shapes)
                caches.append(RecurrentCache(backend, shapes, host, size(LayerShape(state=shapes[0].state))))
            elif shapes[0].image_rows is not None:
                from ollama_engine.kvcache.cross_attention import CrossAttentionCache  # noqa: PLC0415 (few models see images; 5 ms)

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
    if len(caches) == 1 and STATES not in groups:
        return caches[0]
    return CompositeCache(caches, _table(groups.values(), len(layers)), _states(groups))


def make_null_cache(
    layers: Sequence[LayerShape], *, flash_attention: bool, causal: bool, paged: bool = False
) -> StepCache:
    """The cache for embeddings of texts, which stores nothing: all of a text is in one batch. See `NullCache`.

    `paged`: attention takes KV indices instead of a mask; see `null_paged.lists_rows`.
    """
    groups = _by_kind(layers)
    make = PagedNullCache if paged else NullCache
    caches: list[StepCache] = []
    for kind in groups:
        if kind == STATES:
            caches.append(RecurrentStepCache())
            continue
        window, chunk, image_rows, _ = kind
        if image_rows is not None:
            caches.append(NoImages(flash_attention=flash_attention))
        elif causal:
            caches.append(make(flash_attention=flash_attention, causal=Visibility(window=window, chunk=chunk)))
        else:
            caches.append(make(flash_attention=flash_attention, window=window))
    if len(caches) == 1 and STATES not in groups:
        return caches[0]
    return CompositeStepCache(caches, _table(groups.values(), len(layers)), _states(groups))


def make_reader(cache: Cache, layers: Sequence[int]) -> StepCache:
    """These layers of a model's cache, for another model that attends to them and stores nothing: its layers 0, 1 ...

    Raises ValueError where one of them does not store keys and values of tokens.
    """
    places = [cache.places(layer) if isinstance(cache, CompositeCache) else ((cache, layer),) for layer in layers]
    stored = [(each, number) for place in places for each, number in place if isinstance(each, CausalCache)]
    if len(stored) < len(layers):
        raise ValueError(f"one of the layers {list(layers)} stores no keys and values of tokens")
    caches = list(dict.fromkeys(each for each, _ in stored))
    return CompositeStepCache(
        [each.reader() for each in caches], [((caches.index(each), number),) for each, number in stored]
    )


Kind = tuple[int | None, int | None, int | None, bool]
"""Window, chunk, image rows, and whether images are causal."""
STATES: Kind = (0, 0, 0, False)
"""Stands for recurrent states, whatever their shapes: no window has a size of 0."""


def _by_kind(layers: Sequence[LayerShape]) -> dict[Kind, list[int]]:
    """The numbers of the layers of each kind; a layer may be of none, or of two. That of states comes last."""
    groups: dict[Kind, list[int]] = {}
    for number, layer in enumerate(layers):
        if layer.attends:
            groups.setdefault((layer.window, layer.chunk, layer.image_rows, layer.causal_images), []).append(number)
    recurrent = [number for number, layer in enumerate(layers) if layer.state]
    return groups | ({STATES: recurrent} if recurrent else {})


def _states(groups: Collection[Kind]) -> int | None:
    """The index of the cache of states."""
    return len(groups) - 1 if STATES in groups else None


def _table(groups: Collection[list[int]], n_layers: int) -> list[Places]:
    """For each layer its (index of group, index within the group)."""
    return [
        tuple((i, group.index(layer)) for i, group in enumerate(groups) if layer in group) for layer in range(n_layers)
    ]


def _of_layers(shift_keys: ShiftKeys, numbers: Sequence[int]) -> ShiftKeys:
    """`shift_keys` for a cache of some layers: translates its layer numbers to the model's."""
    return lambda layer, keys, deltas: shift_keys(numbers[layer], keys, deltas)
