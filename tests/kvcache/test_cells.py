"""The cell table by hand-written cases, and what it refuses. Against its twin: test_cells_twin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ShapeError
from ollama_engine.kvcache.cells import MAX_CELLS, MAX_SEQUENCES, Cells, Moves
from tests.kvcache.drawing import draw, ends, ints, place, table

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("before", "call", "result", "after"),
    [
        ("a0 . a1 .", ("extent",), 3, "a0 . a1 ."),
        (". .", ("extent",), 0, ". ."),
        ("a0 a1 b0 a2", ("last_position", 0), 2, "a0 a1 b0 a2"),
        ("a0 a1 b0 a2", ("last_position", 2), -1, "a0 a1 b0 a2"),
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
    assert (got.tolist() if isinstance(got, np.ndarray) else got) == result
    assert draw(cells) == draw(table(after))
    cells.check()


@pytest.mark.parametrize(
    ("before", "rows", "places"),
    [
        ("....", "a0 a1", [0, 1]),
        ("a0 . . .", "a1 b0 a2", [1, 2, 3]),
        ("a0 . a1 . .", "a2 b0", [3, 1]),  # above its own, though a lower one is free
        (". a7 . b0", "a8 b1 a9", None),
        (". a7 . b0 .", "a8 b1 a9", [2, 4, 0]),  # none is left above
        (". a7 . b0 . .", "b1 a8 b2", [4, 2, 5]),
        (". . a7", "a8 a9", [0, 1]),
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
    ("cells", "drops", "free"),
    [
        ("a0 a1 a2 .", {}, 1),
        ("a0 a1 a2 .", {0: 2}, 3),
        ("a2 a0 a1 .", {0: 2}, 3),
        ("ab0 ab1 a2 b2", {0: 2}, 0),
        ("ab0 ab1 a2 b2", {0: 2, 1: 1}, 1),
        ("ab0 ab1 a2 b2", {0: 3, 1: 3}, 4),
    ],
)
def test_what_would_be_free_changes_nothing(cells: str, drops: dict[int, int], free: int) -> None:
    made = table(cells)
    assert made.n_free_without(ends(drops)) == free
    assert draw(made) == draw(table(cells))
    made.remove_below(ends(drops))
    assert made.n_free == free
    made.check()


def test_a_sequence_goes_on_where_it_did_after_all_of_it_was_dropped() -> None:
    cells = table("a0 a1 b0 .")
    cells.remove_below(ends({0: 2}))
    assert cells.next_positions()[:3].tolist() == [2, 1, 0]
    assert cells.next_positions(ints([7, 4, 5]), ints([2, 0, 0]))[:3].tolist() == [4, 1, 7]
    cells.remove(0)
    assert cells.next_positions()[:3].tolist() == [0, 1, 0]


def test_positions_in_a_gap_are_new() -> None:
    cells = table("a2 . a7 . b2 .")
    for twice in ([4, 7], [4, 4], [9, 9], [2, 1]):
        with pytest.raises(ValueError, match="each position once"):
            cells.place(ints([1, 3]), ints(twice), ints([0, 0]))
    cells.place(ints([1, 3, 5]), ints([4, 1, 4]), ints([0, 0, 1]))
    assert draw(cells) == "a2 a4 a7 a1 b2 b4"
    cells.check()


def test_a_table_has_cells_and_64_sequences() -> None:
    for n in (0, -1, MAX_CELLS + 1):
        with pytest.raises(ValueError, match="at least one cell and at most 16777216"):
            Cells(n)
    cells = Cells(1)
    cells.place(ints([0]), ints([2**31 - 1]), ints([MAX_SEQUENCES - 1]))
    assert cells.last_position(MAX_SEQUENCES - 1) == 2**31 - 1
    assert cells.next_positions()[-1] == 2**31
    cells.check()


def test_the_largest_table() -> None:
    cells = Cells(MAX_CELLS)
    last = ints([MAX_CELLS - 1])
    cells.place(last, ints([3]), ints([5]))
    assert cells.find_places(ints([4]), ints([5])) == 0
    assert (cells.extent(), cells.span(ints([5]))) == (MAX_CELLS, (MAX_CELLS - 1, MAX_CELLS))
    cells.remove(5)
    assert (cells.extent(), cells.n_free) == (0, MAX_CELLS)


@pytest.mark.parametrize("sequence", [-1, MAX_SEQUENCES, 2**70])
@pytest.mark.parametrize(
    "call",
    [
        lambda cells, s: cells.remove(s),
        lambda cells, s: cells.share(0, s, 1),
        lambda cells, s: cells.share(s, 2, 1),
        lambda cells, s: cells.last_position(s),
        lambda cells, s: cells.has_all(s, 0, 1),
        lambda cells, s: cells.shift_plan(s, 0, 1),
    ],
)
def test_there_are_64_sequences(call: Any, sequence: int) -> None:
    with pytest.raises(ValueError, match="0 to 63"):
        call(table("a0 ."), sequence)


ROW = [ints([0])] * 3

REFUSED = [
    ("sequences out of range", lambda c: c.find_places(ints([0]), ints([64])), "sequences are 0 to 63, got 64"),
    ("negative sequences", lambda c: c.span(ints([-1])), "sequences are 0 to 63, got -1"),
    ("negative positions", lambda c: c.next_positions(ints([-1]), ints([0])), "positions are 0 to 2147483647, got -1"),
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
    (
        "few ends",
        lambda c: c.remove_below(np.zeros(63, dtype=np.int64)),
        r"ends are a contiguous int64 \[64\], got int64 \[63\]",
    ),
    ("narrow ends", lambda c: c.n_free_without(np.zeros(64, dtype=np.int32)), "ends are a contiguous int64"),
    ("no ends", lambda c: c.usage_without(None), "ends are a contiguous int64.*got NoneType"),
    ("shift before the beginning", lambda c: c.shift_plan(0, -1, 2), "a shift begins at 0 or later, got -1"),
    ("shift by nothing", lambda c: c.shift_plan(0, 0, 0), "a shift discards 1 position or more, got 0"),
    ("another's shift", lambda c: c.shift(0, 0, 1, Moves(ints([0]), ints([1]))), "not those that shift_plan gives"),
    ("half a shift", lambda c: c.shift(0, 0, 1, Moves(ints([2]), ints([]))), "not those that shift_plan gives"),
    ("moves out of range", lambda c: c.move(Moves(ints([0]), ints([9]))), "cells are 0 to 3, got 9"),
    ("moves from a free cell", lambda c: c.move(Moves(ints([0, 1]), ints([3, 3]))), "from used cells to free ones"),
    ("moves into a used cell", lambda c: c.move(Moves(ints([0]), ints([2]))), "from used cells to free ones"),
    ("two moves into one cell", lambda c: c.move(Moves(ints([0, 2]), ints([1, 1]))), "from used cells to free ones"),
    ("half of moves", lambda c: c.move((ints([0]),)), "to unpack"),
    ("uneven moves", lambda c: c.move(Moves(ints([0, 2]), ints([1]))), r"targets are a contiguous int32 \[2\]"),
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
    (
        "a used cell without position",
        lambda c: Cells.from_table(ints([-1]), np.ones(1, dtype=np.uint64)),
        "used cells have positions of 0 or more, cell 0 has -1",
    ),
    (
        "a position twice",
        lambda c: Cells.from_table(ints([1, 1]), np.ones(2, dtype=np.uint64)),
        "expected of sequence 0: each position once",
    ),
    (
        "fewer owners",
        lambda c: Cells.from_table(ints([1, 1]), np.ones(1, dtype=np.uint64)),
        "as many positions as owners, got 2 and 1",
    ),
    ("no owners", lambda c: Cells.from_table(ints([1]), None), r"owners are a contiguous uint64 \[n\]"),
]


@pytest.mark.parametrize(("call", "told"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused_changes_nothing(call: Any, told: str) -> None:
    cells = table("a0 . ab1 .")
    with pytest.raises(ValueError, match=told):
        call(cells)
    assert draw(cells) == "a0 . ab1 ."
    cells.check()


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
