"""Layers of different kinds in one cache: who gets what, and all or nothing."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import nn
from ollama_engine.errors import ConfigError, ContextOverflowError, NoMemoryError
from ollama_engine.kvcache import (
    CacheConfig,
    CausalCache,
    CellUsage,
    CompositeCache,
    LayerShape,
    Shiftable,
    make_cache,
)
from ollama_engine.kvcache.shifting import CellShifter
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.tensor import Tensor
from tests.kvcache.drawing import draw
from tests.kvcache.kinds import KINDS, N_CELLS, Fed, answers, fed, shape

MIXED = next(kind for kind in KINDS if kind.name == "window-and-full")
F32 = CacheConfig(dtype="f32", flash_attention=True, history_padding=4)


def parts(f: Fed) -> tuple[CausalCache, CausalCache]:
    assert isinstance(f.cache, CompositeCache)
    window, full = f.cache.caches
    assert isinstance(window, CausalCache)
    assert isinstance(full, CausalCache)
    return window, full


def shiftable(cache: Any) -> Shiftable:
    assert cache.shiftable is not None
    found: Shiftable = cache.shiftable
    return found


def test_layers_of_one_kind_need_no_composite() -> None:
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = make_cache(backend, [shape(window=4)] * 3, [0] * 3, F32, lambda _: 8)
        assert isinstance(cache, CausalCache)
        cache.close()


def test_each_kind_has_its_own_size() -> None:
    sizes = {None: 64, 4: 8}
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        layers = [shape(window=4), shape(), shape(window=4)]
        cache = make_cache(backend, layers, [0] * 3, F32, lambda layer: sizes[layer.window])
        assert isinstance(cache, CompositeCache)
        assert [c.usage.free for c in cache.caches] == [8, 64]
        assert sum(cache.nbytes.values()) == (2 * 8 + 64) * 2 * 2 * 32 * 4
        cache.close()


def test_a_kind_without_memory_takes_none() -> None:
    """When the second cache does not fit, the first is gone too."""
    made: list[CausalCache] = []
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        original = CausalCache.__init__

        def note(self: CausalCache, *arguments: Any, **options: Any) -> None:
            original(self, *arguments, **options)
            made.append(self)

        with patch.object(CausalCache, "__init__", note), pytest.raises(NoMemoryError):
            make_cache(backend, [shape(window=4), shape()], [0, 0], F32, lambda layer: 8 if layer.window else 1 << 30)
        assert [sum(cache.nbytes.values()) for cache in made] == [0]


def test_layers_are_told_by_the_models_numbers() -> None:
    numbers = []

    def shift_keys(layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        numbers.append(layer)
        return keys if layer == 2 else nn.Rope(n_dims=32).shifted(keys, deltas)

    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        layers = [shape(window=4), shape(), shape(), shape(window=4), shape()]
        cache = make_cache(backend, layers, [0] * 5, F32, lambda _: N_CELLS, shift_keys=shift_keys)
        Fed(MIXED, cache, backend).cache.begin(Fed(MIXED, cache, backend).batch([(0, p) for p in range(3)]))
        shiftable(cache).shift(0, 0, 1)
        assert numbers == [0, 3, 1, 2, 4]
        cache.close()


def test_a_step_needs_room_in_every_cache() -> None:
    with fed(MIXED) as f:
        window, full = parts(f)
        f.feed([(0, p) for p in range(20)])
        # The window gives 12 cells up for a step that the other cache has no room for.
        assert (window.cells.n_free, full.cells.n_free) == (12, 12)
        assert (window.room, full.room, f.cache.room) == (24, 12, 12)
        tables = draw(window.cells), draw(full.cells)
        for n in (13, 24):
            with pytest.raises(ContextOverflowError, match=f"{n} tokens do not fit: 12 of 32"):
                f.cache.begin(f.batch([(0, 20 + p) for p in range(n)]))
        assert (draw(window.cells), draw(full.cells)) == tables
        f.feed([(0, 20 + p) for p in range(12)])


def test_usage_is_that_of_the_fullest() -> None:
    with fed(MIXED) as f:
        for position in range(20):
            f.feed([(0, position)])
        window, full = parts(f)
        assert window.usage.used < 10
        assert f.cache.usage == full.usage
        assert f.cache.usage.used == 20


def test_a_shift_needs_room_in_every_cache() -> None:
    with fed(MIXED) as f:
        window, full = parts(f)
        f.feed([(0, p) for p in range(14)])
        f.share(0, 1, 14)
        f.feed([(2, p) for p in range(12)])
        window.remove(2)
        before = answers(f.cache), draw(window.cells), draw(full.cells)
        shiftable(window).require_shift(1, 0, 2)
        with pytest.raises(ContextOverflowError, match="too few of 32"):
            shiftable(f.cache).shift(1, 0, 2)
        assert (answers(f.cache), draw(window.cells), draw(full.cells)) == before


def test_a_shift_that_fails_half_way_takes_the_sequence_from_all() -> None:
    with fed(MIXED) as f:
        _, full = parts(f)
        f.feed([(0, p) for p in range(12)] + [(1, 0)])
        assert isinstance(full.shiftable, CellShifter)
        with patch.object(full.shiftable._mover, "rotate", side_effect=MemoryError), pytest.raises(MemoryError):
            shiftable(f.cache).shift(0, 2, 3)
        f.cache.check()
        assert f.cache.can_resume(0, 2)
        assert not f.cache.can_resume(0, 3)
        f.remove(0, 2)
        f.feed([(0, 2), (1, 1)])


@pytest.mark.parametrize("limits", [{"window": 4, "chunk": 4}, {"window": 0}, {"chunk": -1}])
def test_limits_that_make_no_sense(limits: dict[str, int]) -> None:
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend, pytest.raises(ValueError, match="window"):
        make_cache(backend, [shape(**limits)], [0], F32, lambda _: 8)


def test_types_that_cannot_hold_the_heads() -> None:
    layer = LayerShape(kv_heads=1, key_dim=48, value_dim=48)
    config = CacheConfig(dtype="q8_0", flash_attention=True)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend, pytest.raises(ConfigError, match="blocks of 32"):
        make_cache(backend, [shape(), layer], [0, 0], config, lambda _: 8)


def test_a_cache_can_what_all_its_parts_can() -> None:
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = make_cache(backend, [shape(window=4), shape()], [0, 0], F32, lambda _: 8)
        assert (cache.shiftable is None, cache.saveable is None) == (True, False)
        cache.close()


def test_a_cache_of_no_layers_keeps_nothing() -> None:
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = make_cache(backend, [], [], F32, lambda _: 8)
    assert (cache.shiftable, cache.saveable, cache.usage, cache.nbytes) == (None, None, CellUsage(), {})
    assert cache.room > 1 << 40
    cache.remove(0)
    cache.check()
    cache.close()
