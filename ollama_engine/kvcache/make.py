"""Makes the cache for a model's layers: one cache for each kind of layer, joined by a composite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ollama_engine.kvcache.base import Cache, StepCache
from ollama_engine.kvcache.causal import CausalCache
from ollama_engine.kvcache.composite import CompositeCache, CompositeStepCache
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.move import ShiftKeys
from ollama_engine.kvcache.no_images import NoImages
from ollama_engine.kvcache.null import NullCache
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

    `size` gives the number of cells for a kind of layer, or of images for cross-attention. Layers with a window or
    chunk can be resumed up to `memory` positions back. Raises NoMemoryError, with nothing taken, and ConfigError.
    """
    groups = _by_kind(layers)
    caches: list[Cache] = []
    try:
        for numbers in groups.values():
            shapes, places = [layers[i] for i in numbers], [devices[i] for i in numbers]
            if shapes[0].image_rows is not None:
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
    return caches[0] if len(caches) == 1 else CompositeCache(caches, _table(groups.values()))


def make_null_cache(layers: Sequence[LayerShape], *, flash_attention: bool, causal: bool) -> StepCache:
    """The cache for embeddings of texts, which stores nothing: all of a text is in one batch. See `NullCache`."""
    groups = _by_kind(layers)
    caches: list[StepCache] = []
    for window, chunk, image_rows in groups:
        if image_rows is not None:
            caches.append(NoImages(flash_attention=flash_attention))
        elif causal:
            caches.append(NullCache(flash_attention=flash_attention, causal=Visibility(window=window, chunk=chunk)))
        else:
            caches.append(NullCache(flash_attention=flash_attention, window=window))
    return caches[0] if len(caches) == 1 else CompositeStepCache(caches, _table(groups.values()))


Kind = tuple[int | None, int | None, int | None]
"""Window, chunk and image rows."""


def _by_kind(layers: Sequence[LayerShape]) -> dict[Kind, list[int]]:
    """The numbers of the layers of each kind."""
    kinds = [(layer.window, layer.chunk, layer.image_rows) for layer in layers]
    return {kind: [i for i, other in enumerate(kinds) if other == kind] for kind in dict.fromkeys(kinds)}


def _table(groups: Collection[list[int]]) -> list[tuple[int, int]]:
    """For each layer, (index of its group, index within the group)."""
    places = {layer: (i, at) for i, group in enumerate(groups) for at, layer in enumerate(group)}
    return [places[layer] for layer in sorted(places)]


def _of_layers(shift_keys: ShiftKeys, numbers: Sequence[int]) -> ShiftKeys:
    """`shift_keys` for a cache of some layers: translates its layer numbers to the model's."""
    return lambda layer, keys, deltas: shift_keys(numbers[layer], keys, deltas)
