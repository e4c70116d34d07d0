"""The cell table by hand-written cases, and what it refuses. Against its twin: test_cells_twin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ShapeError
from ollama_engine.kvcache.cells import MAX_CELLS, MAX_SEQUENCES, Cells, Moves, fill_range_mask
from tests.kvcache.drawing import draw, ints, last_position, place, table

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("before", "call", "result", "after"),
    [
        ("a0 a1 b0 .", ("room",), 1, "a0 a1 b0 ."),
        ("a0 ab1 b0 .", ("usage",), (3, 1), "a0 ab1 b0 ."),
        ("a0 a1 b0 .", ("remove", 0), 2, ". . b0 ."),
        ("a0 a1 a2 a3", ("remove", 0, 1, 3), 2, "a0 . . a3"),
        ("a0 a1 a2 a3", ("remove", 0, 2), 2, "a0 a1 . ."),
        ("a0 a1 b0 .", ("remove", 2), 0, "a0 a1 b0 ."),
        ("a0 a1 a2 .", ("share", 0, 1, 2), 2, "ab0 ab1 a2 ."),
        ("ab0 ab1 a2 b2", ("remove", 0), 3, "b0 b1 . b2"),
        ("ab0 ab1 a2 b2", ("remove", 1, 1), 2, "ab0 a1 a2 ."),
    ],
)  # fmt: skip
def test_one_call(before: str, call: tuple[object, ...], result: object, after: str) -> None:
    cells = table(before)
    name, *arguments = call
    got = getattr(cells, str(name))(*arguments)
    assert got == result
    assert draw(cells) == draw(table(after))
    cells.check()


@pytest.mark.parametrize(
    ("before", "rows", "places"),
    [
        ("....", "a0 a1", [0, 1]),
        ("a0 . . .", "a1 b0 a2", [1, 2, 3]),
        ("a0 . a1 . .", "a2 b0", [3, 1]),  # behind its last one, though a lower one is free
        (". a7 . b0", "a8 b1 a9", None),
        (". a7 . b0 .", "a8 b1 a9", [2, 4, 0]),  # none is left behind
        (". a7 . b0 . .", "b1 a8 b2", [4, 2, 5]),
        (". . a7", "a8 a9", [0, 1]),
        (". a8 . . a7 .", "a9 a10", [2, 3]),  # round the end, it goes on from there
        (". ab7 . .", "b8 a8", [2, 3]),
        ("b0 . . .", "a1 a0 a2", [2, 1, 3]),  # a batch may name positions in any order
        ("a0 .", "", []),
    ],
)
def test_where_tokens_go(before: str, rows: str, places: list[int] | None) -> None:
    cells = table(before)
    tokens = [place(word) for word in rows.split()]
    found = cells.find_places(ints(p for _, p in tokens), ints(s[0] for s, _ in tokens))
    assert (None if found is None else found.tolist()) == places
    assert draw(cells) == draw(table(before))
    cells.check()


def grown(cells: Cells, *rows: tuple[int, int]) -> list[int]:
    """Tokens at (sequence, position) are placed; where."""
    batch = ints(p for _, p in rows), ints(s for s, _ in rows)
    places = cells.find_places(*batch)
    assert places is not None
    cells.place(places, *batch)
    cells.check()
    return places.tolist()


@pytest.mark.parametrize(
    ("cells", "sequences", "span"),
    [
        (". a0 . b0 a1 . b1 .", [0], (1, 5)),
        (". a0 . b0 a1 . b1 .", [1], (3, 7)),
        (". a0 . b0 a1 . b1 .", [1, 0, 1], (1, 7)),
        (". a0 . b0 a1 . b1 .", [2, 1], (3, 7)),
        (". a0 . b0 a1 . b1 .", [2], (0, 0)),
        (". a0", [], (0, 0)),
    ],
)
def test_span_of_some_sequences(cells: str, sequences: list[int], span: tuple[int, int]) -> None:
    assert table(cells).span(ints(sequences)) == span


@pytest.mark.parametrize(
    ("cells", "limits", "rows", "room", "left"),
    [
        ("a0 a1 a2 .", {}, "a3", 1, "a0 a1 a2 ."),
        ("a0 a1 a2 .", {"window": 2}, "", 3, ". . a2 ."),  # what comes next sees the last one
        ("a0 a1 a2 .", {"window": 2}, "a3", 3, ". . a2 ."),
        ("a0 a1 a2 .", {"window": 2, "memory": 1}, "", 2, ". a1 a2 ."),
        ("a2 a0 a1 .", {"window": 2}, "", 3, "a2 . . ."),
        ("a0 a1 a2 b0 b1 .", {"window": 1}, "", 6, ". . . . . ."),
        ("a0 a1 a2 b0 b1 .", {"window": 2}, "b1", 3, ". . a2 b0 b1 ."),  # these rows see more than later ones
        ("ab0 ab1 a2 b2", {"window": 2}, "", 2, ". . a2 b2"),
        ("ab0 ab1 ab2 a3", {"window": 2}, "", 2, ". . b2 a3"),
        ("a2 a3 a4 a5", {"chunk": 3}, "", 4, ". . . ."),
        ("a2 a3 a4 a5", {"chunk": 3, "memory": 1}, "", 1, ". a3 a4 a5"),
    ],
)
def test_what_no_later_token_sees_is_given_up(
    cells: str, limits: dict[str, int], rows: str, room: int, left: str
) -> None:  # fmt: skip
    made, tokens = table(cells, **limits), [place(word) for word in rows.split()]
    batch = ints(p for _, p in tokens), ints(s[0] for s, _ in tokens)
    assert made.room_for(*batch) == room
    assert draw(made) == draw(table(cells))
    made.slide(*batch)
    assert draw(made) == draw(table(left))
    assert made.n_free == room
    made.check()


def test_what_is_seen_is_counted_anew_after_a_shift() -> None:
    """Chunks begin at other tokens then."""
    cells = table("a20 a21 a22 a23 a24 a25 . .", chunk=10)
    cells.slide()
    assert cells.room() == 2
    moves = cells.shift_plan(0, 0, 4)
    assert moves is not None
    cells.shift(0, 0, 4, moves)
    assert cells.room() == 6  # 16 to 19 are of the chunk before
    cells.check()


def test_rows_that_go_back_see_more_than_what_comes_later() -> None:
    cells = table("a0 a1 a2 a3 a4 a5 . .", window=2)
    cells.slide(ints([3]), ints([0]))
    assert draw(cells) == ". . a2 a3 a4 a5 . ."
    assert cells.room() == 7
    cells.check()


def test_without_some_sequences_there_is_more_room() -> None:
    cells = table("ab0 ab1 a2 b2 . c0 c1", window=2)
    assert cells.usage() == (3, 0)
    assert [cells.room(ints(without)) for without in ([], [0], [1, 1], [0, 1], [2, 0, 1], [9])] == [4, 5, 5, 6, 7, 4]
    assert draw(cells) == "ab0 ab1 a2 b2 . c0 c1"
    cells.check()


def test_a_sequence_goes_on_where_it_did_after_all_of_it_was_given_up() -> None:
    cells = table("a0 a1 b0 .", chunk=2)
    cells.slide()
    assert draw(cells) == ". . b0 ."
    cells.place(ints([0]), ints([3]), ints([0]))
    cells.slide()
    assert draw(cells) == ". . b0 ."  # 4 begins a chunk: it went on from 3, not from 0
    cells.remove(0)
    cells.place(ints([0]), ints([0]), ints([0]))
    cells.slide()
    assert draw(cells) == "a0 . b0 ."


def test_positions_in_a_gap_are_new() -> None:
    cells = table("a2 . a7 . b2 .")
    for twice in ([4, 7], [4, 4], [9, 9], [2, 1]):
        with pytest.raises(ValueError, match="each position once"):
            cells.place(ints([1, 3]), ints(twice), ints([0, 0]))
    cells.place(ints([1, 3, 5]), ints([4, 1, 4]), ints([0, 0, 1]))
    assert draw(cells) == "a2 a4 a7 a1 b2 b4"
    cells.check()


def test_a_table_has_cells() -> None:
    for n in (0, -1, MAX_CELLS + 1):
        with pytest.raises(ValueError, match="at least one cell and at most 16777216"):
            Cells(n)
    for limits in ({"window": 0}, {"chunk": -1}, {"memory": -1}):
        with pytest.raises(ValueError, match="is at least"):
            Cells(1, **limits)  # type: ignore[arg-type]
    cells = Cells(1, window=2**70, memory=2**70)
    cells.place(ints([0]), ints([2**31 - 1]), ints([7]))
    assert last_position(cells, 7) == 2**31 - 1
    assert cells.room() == 0
    cells.check()


def test_the_largest_table() -> None:
    cells = Cells(MAX_CELLS)
    last = ints([MAX_CELLS - 1])
    cells.place(last, ints([3]), ints([5]))
    assert cells.find_places(ints([4]), ints([5])) == 0
    assert cells.span(ints([5])) == (MAX_CELLS - 1, MAX_CELLS)
    cells.remove(5)
    assert (cells.span(ints([5])), cells.n_free) == ((0, 0), MAX_CELLS)


@pytest.mark.parametrize("sequence", [-1, MAX_SEQUENCES, 2**70])
@pytest.mark.parametrize(
    "call",
    [
        lambda cells, s: cells.remove(s),
        lambda cells, s: cells.share(0, s, 1),
        lambda cells, s: cells.share(s, 2, 1),
        lambda cells, s: cells.of(s),
        lambda cells, s: cells.has_all(s, 0, 1),
        lambda cells, s: cells.can_shift(s, 0, 1),
        lambda cells, s: cells.shift_plan(s, 0, 1),
    ],
)
def test_sequences_are_numbers_from_0_on(call: Any, sequence: int) -> None:
    with pytest.raises(ValueError, match="0 to 1048575"):
        call(table("a0 ."), sequence)


def test_a_table_grows_with_its_sequences() -> None:
    cells = Cells(100_000)
    for sequence in range(50_000):
        cells.place(ints([sequence]), ints([0]), ints([sequence]))
    cells.share(7, MAX_SEQUENCES - 1, 1)
    assert cells.usage() == (50_000, 1)
    assert cells.of(49_999)[0].tolist() == [49_999]
    assert grown(cells, (49_999, 1), (MAX_SEQUENCES - 1, 1)) == [50_000, 50_001]
    cells.check()


ROW = [ints([0])] * 3

REFUSED = [
    ("sequences too high", lambda c: c.find_places(ints([0]), ints([2**20])), "are 0 to 1048575, got 1048576"),
    ("negative sequences", lambda c: c.span(ints([-1])), "sequences are 0 to 1048575, got -1"),
    ("negative positions", lambda c: c.room_for(ints([-1]), ints([0])), "positions are 0 to 2147483647, got -1"),
    ("fewer positions", lambda c: c.find_places(ints([1]), ints([0, 1])), r"sequences are a contiguous int32 \[1\]"),
    (
        "wide positions",
        lambda c: c.find_places(np.zeros(1, dtype=np.int64), ints([0])),
        r"positions are a contiguous int32 \[n\], got int64",
    ),
    ("no arrays", lambda c: c.find_places([1], [0]), "positions are a contiguous int32.*got list"),
    ("none", lambda c: c.span(None), "sequences are a contiguous int32.*got NoneType"),
    ("strided", lambda c: c.span(np.zeros(4, dtype=np.int32)[::2]), "sequences are a contiguous int32"),
    (
        "two dimensions",
        lambda c: c.span(np.zeros((1, 1), dtype=np.int32)),
        r"sequences are a contiguous int32 \[n\], got int32 \[1, 1\]",
    ),
    ("cells out of range", lambda c: c.place(ints([4]), ints([5]), ints([0])), "cells are 0 to 3, got 4"),
    ("negative cells", lambda c: c.place(ints([-1]), ints([5]), ints([0])), "cells are 0 to 3, got -1"),
    ("used cells", lambda c: c.place(ints([1, 0]), ints([5, 6]), ints([0, 0])), "tokens go into free cells"),
    ("a cell twice", lambda c: c.place(ints([1, 1]), ints([5, 6]), ints([0, 1])), "tokens go into free cells"),
    ("a position twice", lambda c: c.place(ints([1, 3]), ints([5, 5]), ints([0, 0])), "has each position once"),
    ("a position that is there", lambda c: c.place(ints([1]), ints([0]), ints([0])), "has each position once"),
    ("shift before the beginning", lambda c: c.shift_plan(0, -1, 2), "a shift begins at 0 or later, got -1"),
    ("shift by nothing", lambda c: c.shift_plan(0, 0, 0), "a shift discards 1 position or more, got 0"),
    ("another's shift", lambda c: c.shift(0, 0, 1, Moves(ints([0]), ints([1]))), "not those that shift_plan gives"),
    ("half a shift", lambda c: c.shift(0, 0, 1, Moves(ints([2]), ints([]))), "not those that shift_plan gives"),
    (
        "a mask beyond the table",
        lambda c: c.fill_mask(2, *ROW, np.zeros((1, 3), dtype=np.float16)),
        "4 cells at most, got 3 from 2 on",
    ),
    (
        "a mask before the table",
        lambda c: c.fill_mask(-1, *ROW, np.zeros((1, 1), dtype=np.float16)),
        "4 cells at most, got 1 from -1 on",
    ),
    (
        "a mask of other rows",
        lambda c: c.fill_mask(0, *ROW, np.zeros((2, 1), dtype=np.float16)),
        "a mask is a contiguous, writable float16",
    ),
    (
        "a mask of integers",
        lambda c: c.fill_mask(0, *ROW, np.zeros((1, 1), dtype=np.int16)),
        "a mask is a contiguous, writable float16.*int16",
    ),
    (
        "a strided mask",
        lambda c: c.fill_mask(0, *ROW, np.zeros((1, 4), dtype=np.float16)[:, ::2]),
        "a mask is a contiguous, writable float16",
    ),
    ("no mask", lambda c: c.fill_mask(0, *ROW, None), "a mask is a contiguous.*got NoneType"),
    (
        "fewer firsts",
        lambda c: c.fill_mask(0, ints([0]), ints([]), ints([0]), np.zeros((1, 1), dtype=np.float16)),
        r"first are a contiguous int32 \[1\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused_changes_nothing(call: Any, message: str) -> None:
    cells = table("a0 . ab1 .")
    with pytest.raises(ValueError, match=message):
        call(cells)
    assert draw(cells) == "a0 . ab1 ."
    cells.check()


def test_masks_of_ranges() -> None:
    mask = np.ones((3, 5), dtype=np.float16)
    fill_range_mask(np.array([[0, 2], [1, 5], [3, 3]], dtype=np.int32), mask)
    assert [[int(seen) for seen in row] for row in mask == 0] == [[1, 1, 0, 0, 0], [0, 1, 1, 1, 1], [0] * 5]
    assert set(mask.ravel().tolist()) == {0.0, -np.inf}
    for bad in ([[0, 6]], [[-1, 2]], [[3, 2]], [[1]], [1, 2]):
        with pytest.raises(ValueError, match="ranges"):
            fill_range_mask(np.array(bad, dtype=np.int32), mask[:1])
    with pytest.raises(ShapeError, match="a mask is"):
        fill_range_mask(np.zeros((2, 2), dtype=np.int32), mask)


def test_a_read_only_mask_is_not_written() -> None:
    mask = np.ones((1, 4), dtype=np.float16)
    mask.flags.writeable = False
    with pytest.raises(ShapeError, match="writable float16"):
        table("a0 . ab1 .").fill_mask(0, *[ints([0])] * 3, mask)
    assert (mask == 1).all()


@pytest.mark.parametrize("seed", range(3))
def test_no_argument_ends_the_process(seed: int) -> None:
    command = [sys.executable, "-m", "tests.kvcache.cells_fuzz_child", str(seed), "6000"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
