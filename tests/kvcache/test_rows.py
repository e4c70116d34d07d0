"""Taking a sequence out of a cache and putting it back, there and elsewhere: attention goes on as if it had stayed."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from ollama_engine.errors import ConfigError, ContextOverflowError
from ollama_engine.kvcache import CacheConfig, CausalCache, LayerShape, SavedRows, rows
from ollama_engine.kvcache.rows import NEAR, PIECE, RUNS, pieces
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.placement import BackendParams
from ollama_engine.ml.types import block_of
from tests.kvcache.drawing import ints
from tests.kvcache.kinds import KINDS, N_CELLS, Kind, answers, fed

each_storing = pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.null], ids=str)
layouts = pytest.mark.parametrize("flash", [True, False], ids=["flash", "permuted"])


def run(sequence: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(sequence, position) for position in range(begin, end)]


def same(a: list[SavedRows], b: list[SavedRows]) -> bool:
    return len(a) == len(b) and all(
        (one.positions == other.positions).all()
        and all((left == right).all() for left, right in zip(one.rows, other.rows, strict=True))
        for one, other in zip(a, b, strict=True)
    )


@layouts
@each_storing
def test_what_is_put_back_goes_on(kind: Kind, flash: bool) -> None:
    with fed(kind, flash) as f:
        for position in range(9):  # so that cells of two sequences take turns
            f.feed([(0, position), (1, position)])
        saved = f.cache.save(0)
        assert same(f.cache.save(0), saved)
        f.cache.restore(2, saved)
        f.cache.check()
        assert same(f.cache.save(2), saved)
        f.tokens[2] = dict(f.tokens[0])
        f.remove(0)
        f.feed([*run(2, 9, 12), *run(1, 9, 11)])
        f.remove(1)
        f.remove(2)
        assert f.cache.usage.used == 0


@layouts
@each_storing
def test_what_is_put_into_another_cache_goes_on_there(kind: Kind, flash: bool) -> None:
    with fed(kind, flash) as here, fed(kind, not flash) as there:
        for position in range(9):
            here.feed([(0, position)])
        assert here.cache.row_bytes == there.cache.row_bytes
        there.feed([(1, 0), (3, 0)])
        there.remove(3)
        there.cache.restore(0, here.cache.save(0))
        there.tokens[0] = dict(here.tokens[0])
        there._n_tokens = 100  # none that was put here
        there.feed([*run(0, 9, 13), (1, 1)])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.null and kind.name != "window-of-one"], ids=str)
def test_too_few_cells_change_nothing(kind: Kind) -> None:
    """A window of one leaves one cell, which fits wherever anything does."""
    with fed(kind) as here, fed(kind) as there:
        for position in range(9):
            here.feed([(0, position)])
        saved = here.cache.save(0)
        assert any(len(part.positions) > 1 for part in saved)
        sequences = range(1, N_CELLS)
        there.feed([(sequence, 0) for sequence in sequences])
        before = answers(there.cache)
        with pytest.raises(ContextOverflowError, match="do not fit"):
            there.cache.restore(0, saved)
        with pytest.raises(ContextOverflowError, match="do not fit"):
            there.cache.require_restore(saved, [1])  # who leaves one cell
        there.cache.require_restore(saved, range(1, 10))
        assert answers(there.cache) == before
        there.remove(1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_sequence_without_tokens_is_nothing(kind: Kind) -> None:
    with fed(kind) as f:
        saved = f.cache.save(0)
        assert [len(part.positions) for part in saved] == [0] * len(f.cache.row_bytes)
        f.cache.restore(1, saved)
        assert f.cache.usage.used == 0


def test_images_stay_where_they_are() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "images-and-full")
    with fed(kind) as f:
        f.feed([(0, 0), (0, 1)], images=[0])
        f.feed([(1, 0)])
        with pytest.raises(ConfigError, match="images"):
            f.cache.save(0)
        f.cache.restore(2, f.cache.save(1))
        f.tokens[2] = dict(f.tokens[1])
        f.feed([(2, 1)])


@pytest.mark.parametrize(
    ("dtype", "flash"),
    [(dtype, flash) for dtype in ("f32", "f16", "bf16", "q8_0", "q4_0") for flash in (True, False)
     if flash or not dtype.startswith("q")],
)  # fmt: skip
def test_bytes_are_those_of_the_cells_and_of_no_others(dtype: str, flash: bool) -> None:
    layers = [LayerShape(kv_heads=2, key_dim=64, value_dim=32), LayerShape(kv_heads=1, key_dim=32, value_dim=96)]
    config = CacheConfig(dtype=dtype, flash_attention=flash, history_padding=8)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = CausalCache(backend, layers, [0, 0], 40, config)
        (sizes,) = cache.row_bytes
        elements, nbytes = block_of(dtype)
        counts = [count for layer in layers for count in (layer.n_keys, layer.n_values)]
        assert list(sizes) == [count // elements * nbytes for count in counts]
        given = {}
        for sequence, n in ((0, 7), (1, 5), (2, 11)):
            rows = tuple(rng.integers(0, 256, (n, size), dtype=np.uint8) for size in sizes)
            given[sequence] = SavedRows(ints(range(n)), rows)
            cache.restore(sequence, [given[sequence]])
        cache.remove(1)
        del given[1]
        given[3] = SavedRows(ints(range(8)), tuple(rng.integers(0, 256, (8, size), dtype=np.uint8) for size in sizes))
        cache.restore(3, [given[3]])  # into the hole and beyond
        for sequence, saved in given.items():
            assert same(cache.save(sequence), [saved])
        cache.close()


# -- how much is copied ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cells", "expected"), [
    ([], []),
    ([5], [(5, 6)]),
    ([7, 5, 6], [(5, 8)]),  # in any order
    ([0, NEAR], [(0, NEAR + 1)]),
    ([0, NEAR + 1], [(0, 1), (NEAR + 1, NEAR + 2)]),
    (range(PIECE + 2), [(0, PIECE), (PIECE, PIECE + 2)]),
    ([*range(1000, 1010), 9, *range(50000, 50003)], [(9, 10), (1000, 1010), (50000, 50003)]),
])  # fmt: skip
def test_which_cells_are_copied(cells: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(pieces(ints(cells))) == expected


@given_any(st.sets(st.integers(0, 60000), max_size=200))
def test_every_cell_is_copied_once_and_few_others(cells: set[int]) -> None:
    found = list(pieces(ints(list(cells))))
    copied = [cell for span in found for cell in range(*span)]
    assert len(copied) == len(set(copied))
    assert cells <= set(copied)
    assert all(0 < span.n <= PIECE for span in found)
    runs = 1 + sum(a.end != b.begin for a, b in pairwise(found))
    assert runs <= RUNS
    if runs < RUNS:
        assert len(copied) <= NEAR * max(1, len(cells))


@layouts
def test_a_short_sequence_in_a_large_cache_is_copied_alone(flash: bool) -> None:
    config = CacheConfig(dtype="f16", flash_attention=flash)
    read, copied = rows._read, list[int]()

    def note_read(store: object, span: rows.CellSpan) -> object:
        copied.append(span.n)
        return read(store, span)  # type: ignore[arg-type]

    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = CausalCache(backend, [LayerShape(kv_heads=1, key_dim=32, value_dim=32)], [0], 8192, config)
        cache.reserve_moves()
        taken = backend.graph_bytes()
        filler = np.zeros((5000, 64), dtype=np.uint8)
        cache.restore(0, [SavedRows(ints(range(5000)), (filler, filler))])
        mine = np.arange(20 * 64, dtype=np.uint8).reshape(20, 64)
        with patch.object(rows, "_read", note_read):
            cache.restore(1, [SavedRows(ints(range(20)), (mine, mine + 1))])
            (saved,) = cache.save(1)
        assert copied == [20], "what is written as a whole is not read before"
        assert (saved.rows[0] == mine).all()
        assert (saved.rows[1] == mine + 1).all()
        assert backend.graph_bytes() == taken
        cache.close()
