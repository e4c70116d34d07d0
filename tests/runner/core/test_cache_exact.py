"""Sharing, resuming and shifting under a model, cells anywhere: the logits that follow are those of a fresh start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.input import Batch
from ollama_engine.kvcache import CompositeCache, Shiftable
from ollama_engine.runner.load import caches
from ollama_engine.runner.load.loading import Loaded
from tests.models.cases import difference
from tests.models.variants import loaded, prompt, rows
from tests.support.mixed_model import mixed_llama
from tests.support.tiny import write_tiny_llama

SAME = 1e-4
"""Largest difference between two ways to compute the same, in standard deviations of the logits."""

ROPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_context_length": 64}},
    "factors": {"rope_freqs": True},
    "partial": {"metadata": {"llama.rope.dimension_count": 8}},
}
layouts = pytest.mark.parametrize("flash", ["on", "off"])


@contextmanager
def mixed(folder: Path, memory: int = 8, **options: Any) -> Iterator[Loaded]:
    """Six layers: window, chunk, full, twice; resumed up to `memory` tokens back."""
    path = write_tiny_llama(folder / "mixed.gguf", n_layer=6, n_ctx=256, seed=3).path
    with patch.object(caches, "RESUME_TOKENS", memory), mixed_llama(), loaded(path, **options) as parts:
        assert isinstance(parts.cache, CompositeCache)
        yield parts


def shiftable(parts: Loaded) -> Shiftable:
    assert parts.cache.shiftable is not None
    return parts.cache.shiftable


def fresh(parts: Loaded, ids: list[int], n: int, sequence: int = 9) -> NDArray[np.float32]:
    """Logits of the last n rows of a sequence of its own."""
    parts.cache.remove(sequence)
    return rows(parts.executor, ids, 64, sequence=sequence, last=n)


@layouts
def test_mixed_layers_do_not_care_how_a_prompt_is_cut(tmp_path: Path, flash: Any) -> None:
    ids = prompt(150)
    with mixed(tmp_path, flash_attention=flash) as parts:
        expected = fresh(parts, ids, 32)
        for size in (33, 7, 1):
            parts.cache.remove(0)
            assert difference(rows(parts.executor, ids, size), expected) <= SAME
            parts.cache.check()


@layouts
@pytest.mark.parametrize(("memory", "end"), [(8, 92), (8, 99), (8, 100), (200, 1), (200, 16), (200, 24), (200, 48)])
def test_a_shared_prefix_is_as_good_as_a_computed_one(tmp_path: Path, flash: Any, memory: int, end: int) -> None:
    first, rest = prompt(100), prompt(40, seed=7)
    with mixed(tmp_path, memory, flash_attention=flash) as parts:
        rows(parts.executor, first[:64], 64)
        for position in range(64, 100):
            parts.executor.run(Batch.of([first[position]], position))
        assert parts.cache.can_resume(0, 30) is (memory == 200)
        parts.cache.share(0, 1, end)
        assert parts.cache.can_resume(1, end)
        wanted = list(range(len(rest)))[-32:]
        found = parts.executor.run(Batch.of(rest, end, 1, wanted)).copy()
        assert difference(found, fresh(parts, first[:end] + rest, 32)) <= SAME
        parts.cache.check()


@layouts
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_where_cells_lie_changes_no_answer(tmp_path: Path, flash: Any, dtype: Any) -> None:
    """Sequences decoded side by side have cells by turns; prompts and tokens go on from there."""
    ids = prompt(150)
    with mixed(tmp_path, 200, flash_attention=flash, kv_cache_type=dtype) as parts:
        other = prompt(80, seed=2)
        for position in range(70):
            two = Batch(*(np.array(pair, dtype=np.int32) for pair in (
                [ids[position], other[position]], [position, position], [0, 3], [0, 1])))  # fmt: skip
            parts.executor.run(two)
        parts.cache.remove(3)
        found = parts.executor.run(Batch.of(ids[70:148], 70, 0, range(46, 78))).copy()
        expected = fresh(parts, ids, 34)
        assert difference(found, expected[:32]) <= (SAME if dtype == "f32" else 2e-2)
        found = parts.executor.run(Batch.of(ids[148:], 148, 0, range(2))).copy()
        assert difference(found, expected[32:]) <= (SAME if dtype == "f32" else 2e-2)


@layouts
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("shared", [False, True])
def test_one_layer_continues_after_a_shift_as_if_nothing_else_had_been(
    tmp_path: Path, flash: Any, rope: str, shared: bool
) -> None:
    """Keys of a first layer depend on token and position alone; those of further layers also on what was discarded."""
    path = write_tiny_llama(tmp_path / "one.gguf", n_layer=1, n_ctx=256, seed=4, **ROPES[rope]).path
    ids, rest = prompt(120), prompt(20, seed=5)
    with loaded(path, flash_attention=flash) as parts:
        rows(parts.executor, ids, 64)
        if shared:
            parts.cache.share(0, 1, 110)
        shiftable(parts).shift(0, 4, 50)
        parts.executor.close()
        parts.cache.check()
        assert parts.cache.can_resume(0, 70)
        found = parts.executor.run(Batch.of(rest, 70, 0, range(20))).copy()
        assert difference(found, fresh(parts, ids[:4] + ids[54:] + rest, 20)) <= SAME
        if shared:
            other = parts.executor.run(Batch.of(rest, 110, 1, range(20))).copy()
            assert difference(other, fresh(parts, ids[:110] + rest, 20)) <= SAME


def test_mixed_layers_shift_where_the_window_kept_enough(tmp_path: Path) -> None:
    """Chunks end at other places then, so that a shift by less than a chunk may ask for tokens that are gone."""
    with mixed(tmp_path) as parts:
        rows(parts.executor, prompt(140), 64)
        shiftable(parts).shift(0, 4, 72)
        parts.executor.close()
        parts.cache.check()
        assert parts.cache.can_resume(0, 68)
        parts.executor.run(Batch.of([5], 68))


def test_moves_take_no_memory_that_was_not_reserved(tmp_path: Path) -> None:
    with mixed(tmp_path) as parts:
        before = parts.backend.graph_bytes()
        rows(parts.executor, prompt(200), 64)
        parts.cache.share(0, 1, 150)
        shiftable(parts).shift(0, 4, 72)
        parts.cache.remove(1)
        assert parts.backend.graph_bytes() == before
