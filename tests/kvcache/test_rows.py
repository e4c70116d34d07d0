"""Taking a sequence out of a cache and putting it back, there and elsewhere: attention goes on as if it had stayed."""

from __future__ import annotations

import gc
import sys
import time
from itertools import pairwise
from threading import Event, Thread
from typing import get_args
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from ollama_engine.config import CacheType
from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import Cache, CacheConfig, CausalCache, LayerShape, Saveable, SavedRows, rows, state_store
from ollama_engine.kvcache.rows import NEAR, PIECE, RUNS, pieces, result_of
from ollama_engine.kvcache.span import CellSpan
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.types import block_of
from tests.kvcache.drawing import ints
from tests.kvcache.kinds import IMAGE_ROWS, KINDS, N_CELLS, N_IMAGES, Fed, Kind, answers, fed, run
from tests.kvcache.test_images import cross_attention_of
from tests.support.waiting import eventually, join

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
layouts = pytest.mark.parametrize("layout", ["indices", "permuted", "f16", "q8_0"])
OTHER_LAYOUT = {"indices": "permuted", "permuted": "gathered", "f16": "f16-permuted", "q8_0": "q8_0-masks"}
"""One that stores the same rows in another way, where there is one."""


def same(a: list[SavedRows], b: list[SavedRows]) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(kind.positions, other.positions)
        and all((left == right).all() for left, right in zip(kind.rows, other.rows, strict=True))
        for kind, other in zip(a, b, strict=True)
    )


def saveable(cache: Cache) -> Saveable:
    assert cache.saveable is not None
    return cache.saveable


@layouts
@each_kind
def test_what_is_put_back_goes_on(kind: Kind, layout: str) -> None:
    with fed(kind, layout) as f:
        for position in range(9):  # so that cells of two sequences take turns
            f.feed([(0, position), (1, position)], [0, 1] if kind.sees_images and position in (2, 5) else ())
        saver = saveable(f.cache)
        saved = saver.save(0)
        assert same(saver.save(0), saved)
        f.remove(1)
        f.restore(saved, 0, 2)
        f.cache.check()
        assert same(saver.save(2), saved)
        f.remove(0)
        f.feed([*run(2, 9, 12), *run(1, 0, 2)])
        f.remove(1)
        f.remove(2)
        assert f.cache.usage.used == 0


@layouts
@each_kind
def test_parts_are_put_back_one_behind_the_other(kind: Kind, layout: str) -> None:
    with fed(kind, layout) as f:
        for position in range(9):
            f.feed([(0, position), (1, position)], [0] if kind.sees_images and position in (2, 3, 7) else ())
        saver = saveable(f.cache)
        seen = saver.first_seen(9)
        saved, parts = saver.save(0), [saver.save(0, begin, end) for begin, end in pairwise((0, 3, 4, 9))]
        assert all(first >= 0 for first in seen)
        assert all(
            number in saver.image_kinds or set(range(first, 9)) <= set(whole.positions.tolist())
            for number, (first, whole) in enumerate(zip(seen, saved, strict=True))
        )
        f.remove(1)
        for part in parts:
            f.restore(part, 0, 2)
            f.cache.check()
        assert same(saver.save(2), saved)
        f.remove(0)
        f.feed(run(2, 9, 12))


@layouts
@each_kind
def test_copies_between_steps_are_small_pieces(kind: Kind, layout: str) -> None:
    """A step waits for SLICE bytes, or one row; where a graph gathers, for FEW cells."""
    with (
        fed(kind, layout) as f,
        patch.object(rows, "SLICE", 3),
        patch.object(state_store, "SLICE", 3),
        patch.object(rows, "FEW", 1),
    ):
        for position in range(9):
            f.feed([(0, position), (1, position)], [0, 1] if kind.sees_images and position in (2, 5) else ())
        saver = saveable(f.cache)
        expected = saver.save(0, 1, 7)
        gathers = "permuted" in layout
        assert sum(1 for _ in saver.saving(0, 1, 7)) >= sum(
            len(part.positions) * (1 if gathers else len(part.rows)) for part in expected if part.rows
        )
        assert same(result_of(saver.saving(0, 1, 7)), expected)


def test_tables_share_one_allocation() -> None:
    made = rows.tables(3, (2, 5))
    assert [part.shape for part in made] == [(3, 2), (3, 5)]
    assert made[0].base is made[1].base
    assert rows.tables(3, ()) == ()


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has no lock")
def test_a_copy_between_steps_keeps_pythons_lock() -> None:
    """Who took it meanwhile may wait for a CPU, and the engine's thread with it: 3 ms were seen."""
    layer = LayerShape(kv_heads=4, key_dim=64, value_dim=64)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = CausalCache(backend, [layer] * 4, [0] * 4, 256, CacheConfig(dtype="f16", flash_attention=True))
        (sizes,) = cache.saveable.row_bytes
        for position in range(64):  # two sequences, whose cells take turns
            row = SavedRows(ints([position]), tuple(np.full((1, size), position, np.uint8) for size in sizes))
            cache.saveable.restore(0, [row])
            cache.saveable.restore(1, [row])
        took, over = [0], Event()

        def take() -> None:
            while not over.is_set():
                took[0] += 1
                time.sleep(0)

        other, interval = Thread(target=take), sys.getswitchinterval()
        other.start()
        eventually(lambda: took[0])
        sys.setswitchinterval(60.0)  # seconds until another thread may ask for the lock
        time.sleep(0.01)  # the other may wait for it by the old interval
        gc.collect()  # what other tests left may give it away as it goes
        try:
            before = took[0]
            for _ in range(1000):
                (saved,) = result_of(cache.saveable.saving(0))
            assert took[0] == before
        finally:
            sys.setswitchinterval(interval)
            over.set()
            join(other)
        assert all((part == np.arange(64)[:, None]).all() for part in saved.rows)
        cache.close()


def test_rows_that_move_or_leave_while_they_are_copied() -> None:
    """None of another sequence is taken for one of this: begun anew, or left out."""
    with fed(KINDS[0]) as f, patch.object(rows, "SLICE", 1):
        for position in range(6):
            f.feed([(0, position), (1, position)])
        saver, expected = saveable(f.cache), saveable(f.cache).save(1)
        saving = saver.saving(1)
        next(saving)
        f.remove(1)
        f.feed(run(2, 0, 6))  # in its cells
        f.restore(expected, 0, 1)
        found = result_of(saving)
        assert same(found, expected)
        saving = saver.saving(1)
        next(saving)
        f.remove(1)
        assert [len(part.positions) for part in result_of(saving)] == [0]


@layouts
@each_kind
def test_what_is_put_into_another_cache_goes_on_there(kind: Kind, layout: str) -> None:
    with fed(kind, layout) as here, fed(kind, OTHER_LAYOUT[layout]) as there:
        for position in range(9):
            here.feed([(0, position)], [0] if kind.sees_images and position == 4 else ())
        assert saveable(here.cache).row_bytes == saveable(there.cache).row_bytes
        there.feed([(1, 0), (3, 0)], [0, 1] if kind.sees_images else ())
        there.remove(3)
        there.restore(saveable(here.cache).save(0), 0, 0, here)
        there._n_tokens = 100  # none that was put here
        there.feed([*run(0, 9, 13), (1, 1)])


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name not in ("window-of-one", "recurrent-and-full")], ids=str
)
def test_too_few_cells_change_nothing(kind: Kind) -> None:
    """A window of one leaves one cell, which fits wherever anything does; there are fewer states than cells."""
    with fed(kind) as here, fed(kind) as there:
        for position in range(9):
            here.feed([(0, position)])
        saved = saveable(here.cache).save(0)
        assert any(len(part.positions) > 1 for part in saved)
        sequences = range(1, N_CELLS)
        there.feed([(sequence, 0) for sequence in sequences])
        before = answers(there.cache)
        saver = saveable(there.cache)
        with pytest.raises(ContextOverflowError, match="do not fit"):
            saver.restore(0, saved)
        with pytest.raises(ContextOverflowError, match="do not fit"):
            saver.require_restore(saved, [1])  # who leaves one cell
        saver.require_restore(saved, range(1, 10))
        assert answers(there.cache) == before
        there.remove(1)


@each_kind
def test_a_sequence_without_tokens_is_nothing(kind: Kind) -> None:
    with fed(kind) as f:
        saver = saveable(f.cache)
        saved = saver.save(0)
        assert [len(part.positions) for part in saved] == [0] * len(saver.row_bytes)
        assert [[rows.shape[1] for rows in part.rows] for part in saved] == [list(sizes) for sizes in saver.row_bytes]
        saver.restore(1, saved)
        assert f.cache.usage.used == 0


# -- images ------------------------------------------------------------------------------------------------------------

IMAGES = next(kind for kind in KINDS if kind.sees_images)


def images_of(f: Fed) -> dict[int, int | None]:
    return cross_attention_of(f).slots.of(0)


def test_lost_images_are_known_where_they_are_restored() -> None:
    """A sequence must not be resumed where it would see one that gave up its slot."""
    with fed(IMAGES) as here, fed(IMAGES) as there:
        for position in range(0, 12, 2):
            here.feed(run(0, position, position + 2), [0])
        lost = [position for position, slot in images_of(here).items() if slot is None]
        assert len(lost) == 6 - N_IMAGES
        saved = saveable(here.cache).save(0)
        there.restore(saved, 0, 0, here)
        assert answers(there.cache)[1] == answers(here.cache)[1]
        assert same(saveable(there.cache).save(0), saved)
        there._n_tokens = 100
        there.feed(run(0, 12, 14))


def test_the_latest_images_are_restored_where_not_all_fit() -> None:
    with fed(IMAGES) as here, fed(IMAGES) as there:
        for position in range(0, 6, 2):
            here.feed(run(0, position, position + 2), [0])
        saved = saveable(here.cache).save(0)
        there.feed([(s, 0) for s in (1, 2, 3)], [0, 1, 2])
        there.restore(saved, 0, 0, here)
        assert [slot is None for slot in images_of(there).values()] == [True, True, False]
        there.cache.check()
        there._n_tokens = 100
        there.feed(run(0, 6, 8))


def test_an_image_that_does_not_fit_at_all_changes_nothing() -> None:
    with fed(IMAGES) as here, fed(IMAGES) as there:
        here.feed(run(0, 0, 3), [1])
        saved = saveable(here.cache).save(0)
        there.feed([(s, 0) for s in range(1, 5)], range(4))
        before = answers(there.cache)
        saver = saveable(there.cache)
        with pytest.raises(ContextOverflowError, match="image does not fit"):
            saver.restore(0, saved)
        saver.require_restore(saved, [3])
        assert answers(there.cache) == before
        there.remove(3)
        there.restore(saved, 0, 0, here)
        there._n_tokens = 100
        there.feed([(0, 3), (1, 1)])


def test_of_an_image_its_own_rows_are_copied() -> None:
    """What an earlier and larger one left behind them in the slot is not, nor does it reach a file."""
    with fed(IMAGES) as here, fed(IMAGES) as there:
        here._n_tokens = IMAGE_ROWS - 1
        here.feed([(1, 0)], [0])  # as large as a slot
        here.remove(1)
        here._n_tokens = IMAGE_ROWS
        here.feed(run(0, 0, 3), [0])  # of one row, in the same slot
        saver = saveable(here.cache)
        saved, (number,) = saver.save(0), saver.image_kinds
        for rows in saved[number].rows[:-1]:
            (its_own, unused) = np.split(rows[0], [rows.shape[1] // IMAGE_ROWS])
            assert its_own.any()
            assert not unused.any()
        there.restore(saved, 0, 0, here)
        there._n_tokens = 100
        there.feed([(0, 3)])


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "flash"),
    [(dtype, flash) for dtype in get_args(CacheType) for flash in (True, False) if flash or block_of(dtype)[0] == 1],
)  # fmt: skip
def test_bytes_are_those_of_the_cells_and_of_no_others(dtype: str, flash: bool) -> None:
    layers = [
        LayerShape(kv_heads=2, key_dim=64, value_dim=32), LayerShape(kv_heads=1, key_dim=96, value_dim=64, latent=True),
        LayerShape(kv_heads=1, key_dim=32, value_dim=96),
    ]  # fmt: skip
    config = CacheConfig(dtype=dtype, flash_attention=flash, history_padding=8)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = CausalCache(backend, layers, [0] * 3, 40, config)
        (sizes,) = cache.saveable.row_bytes
        elements, nbytes = block_of(dtype)
        counts = [count for layer in layers for count in (layer.n_keys, layer.n_values) if count]
        assert list(sizes) == [count // elements * nbytes for count in counts]
        given = {}
        for sequence, n in ((0, 7), (1, 5), (2, 11)):
            rows = tuple(rng.integers(0, 256, (n, size), dtype=np.uint8) for size in sizes)
            given[sequence] = SavedRows(ints(range(n)), rows)
            cache.saveable.restore(sequence, [given[sequence]])
        cache.remove(1)
        del given[1]
        given[3] = SavedRows(ints(range(8)), tuple(rng.integers(0, 256, (8, size), dtype=np.uint8) for size in sizes))
        cache.saveable.restore(3, [given[3]])  # into the hole and beyond
        for sequence, saved in given.items():
            assert same(cache.saveable.save(sequence), [saved])
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
    spans = list(pieces(ints(list(cells))))
    copied = [cell for span in spans for cell in range(*span)]
    assert len(copied) == len(set(copied))
    assert cells <= set(copied)
    assert all(0 < span.n <= PIECE for span in spans)
    runs = 1 + sum(a.end != b.begin for a, b in pairwise(spans))
    assert runs <= RUNS
    if runs < RUNS:
        assert len(copied) <= NEAR * max(1, len(cells))


@pytest.mark.parametrize("flash", [True, False])
def test_a_short_sequence_in_a_large_cache_is_copied_alone(flash: bool) -> None:
    config = CacheConfig(dtype="f16", flash_attention=flash)
    read, copied = rows._read, list[int]()

    def note_read(store: object, span: CellSpan) -> object:
        copied.append(span.n)
        return read(store, span)  # type: ignore[arg-type]

    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = CausalCache(backend, [LayerShape(kv_heads=1, key_dim=32, value_dim=32)], [0], 8192, config)
        cache.saveable.reserve()
        taken = backend.graph_bytes()
        filler = np.zeros((5000, 64), dtype=np.uint8)
        cache.saveable.restore(0, [SavedRows(ints(range(5000)), (filler, filler))])
        mine = np.arange(20 * 64, dtype=np.uint8).reshape(20, 64)
        with patch.object(rows, "_read", note_read):
            cache.saveable.restore(1, [SavedRows(ints(range(20)), (mine, mine + 1))])
            (saved,) = cache.saveable.save(1)
        assert copied == [20], "what is written as a whole is not read before"
        assert (saved.rows[0] == mine).all()
        assert (saved.rows[1] == mine + 1).all()
        assert backend.graph_bytes() == taken
        cache.close()


def test_no_graph_reads_cells_of_others_alone() -> None:
    """Cells of 16 answers lie in turn: one in 16 is of the sequence, and a graph reads 8."""
    config, read, copied = CacheConfig(dtype="f16", flash_attention=False, paged=False), rows._read, list[int]()

    def note_read(store: object, span: CellSpan) -> object:
        copied.append(span.n)
        return read(store, span)  # type: ignore[arg-type]

    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = CausalCache(backend, [LayerShape(kv_heads=1, key_dim=32, value_dim=32)], [0], 64, config)
        for position in range(4):
            for sequence in range(16):
                row = np.full((1, 64), 16 * position + sequence, np.uint8)
                cache.saveable.restore(sequence, [SavedRows(ints([position]), (row, row))])
        with patch.object(rows, "_read", note_read):
            (saved,) = rows.result_of(cache.saveable.saving(3))
        assert len(copied) == 4
        assert [part[:, 0].tolist() for part in saved.rows] == [[3, 19, 35, 51]] * 2
        cache.close()
