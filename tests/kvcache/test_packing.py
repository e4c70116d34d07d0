"""Packing: when cells move, how many at once, and that nothing but their place changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import numpy as np
import pytest

from ollama_engine.config import CacheType
from ollama_engine.kvcache import CacheConfig, CausalCache, make_cache
from ollama_engine.kvcache.packing import AT_ONCE, LEAST_RUN, ROWS_PER_MOVE
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.types import block_of
from tests.kvcache.drawing import ints
from tests.kvcache.kinds import shape
from tests.kvcache.test_contract import bits

N_CELLS = 2048
MANY = 1 << 20


@contextmanager
def filled(dtype: CacheType = "f32", *, flash: bool = True, n: int = 1600, every: int = 4) -> Iterator[CausalCache]:
    """Sequences 0 to `every` - 1 take turns, a token each, until `n` cells are used."""
    layers = [shape(), shape()]
    config = CacheConfig(dtype=dtype, flash_attention=flash, paged=False)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = CausalCache(backend, layers, [0, 0], N_CELLS, config)
        cells, rng = np.arange(n, dtype=np.int32), np.random.default_rng(1)
        cache.cells.place(cells, cells // every, cells % every)
        with Context(backend) as ctx:
            cache._n_tokens = n
            cache._histories._current.begin_reserve(n)
            cache.build_inputs(ctx)
            for layer in range(2):
                cache.set_layer(layer)
                cache.put(*(ctx.from_floats(rng.standard_normal((n, 2, 32)).astype(np.float32)) for _ in "kv"))
            ctx.alloc()
            assert cache._targets is not None
            cache._targets.set(cells)
            ctx.compute()
        yield cache
        cache.close()


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "permuted"])
@pytest.mark.parametrize("dtype", get_args(CacheType))
def test_bits_stay(dtype: CacheType, flash: bool) -> None:
    """Of every type: what a cell holds is read and written again. Sequence 3 shares cells of sequence 1."""
    if block_of(dtype)[0] > 1 and not flash:
        return
    with filled(dtype, flash=flash) as cache:
        contract = cache.defragmentable
        assert contract is not None
        cache.remove(0)
        cache.remove(2)
        cache.remove(3)
        cache.share(1, 3, 200)
        cache.remove(1, 300, 310)
        before = [bits(cache.saveable.save(sequence)) for sequence in (1, 3)]
        moved = []
        while n := contract.defrag(ints([1]), MANY):
            moved.append(n)
            cache.cells.check()
        assert max(moved) <= AT_ONCE
        assert sum(moved) == 400 - 10 - 1, "the first one stays"
        assert [bits(cache.saveable.save(sequence)) for sequence in (1, 3)] == before
        assert cache.cells.span(ints([1, 3])) == (1, 391)


def test_it_is_due_where_half_of_the_run_is_free_and_the_move_pays() -> None:
    with filled() as cache:
        contract = cache.defragmentable
        assert contract is not None
        everyone = ints(range(4))
        assert not contract.due(everyone, MANY)
        cache.remove(3)
        assert not contract.due(everyone, MANY), "a quarter is free"
        cache.remove(1)
        # 0, 2, 4 ...: 799 of 800 cells move, and 799 are free between the first and the last.
        assert contract.due(ints([0, 2]), ROWS_PER_MOVE)
        assert not contract.due(ints([0, 2]), ROWS_PER_MOVE - 1)
        assert contract.defrag(ints([0, 2]), ROWS_PER_MOVE - 1) == 0
        cache.remove(0, LEAST_RUN // 4 - 1)
        cache.remove(2, LEAST_RUN // 4 - 1)
        assert not contract.due(ints([0, 2]), MANY), "a short run"


def test_other_sequences_cells_are_no_gaps() -> None:
    """Sequence 1 does not run; its cells lie between those of sequence 0, and are read with them."""
    with filled(every=2) as cache:
        contract = cache.defragmentable
        assert contract is not None
        assert not contract.due(ints([0]), MANY)


def test_listed_attention_has_none() -> None:
    """Its cost does not depend on where cells lie."""
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        for layers in ([shape()], [shape(), shape(window=8)], [shape(), shape(image_rows=3)]):
            for paged in (True, False):
                config = CacheConfig(dtype="f16", flash_attention=True, paged=paged)
                cache = make_cache(backend, layers, [0] * len(layers), config, lambda layer: 4)
                listed = paged and CausalCache(backend, [shape()], [0], 4, config)._histories._pages
                assert (cache.defragmentable is None) == listed
                cache.close()
