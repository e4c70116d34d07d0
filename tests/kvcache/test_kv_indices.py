"""KV indices: each row's are the cells that its mask shows, in the order of positions, whatever was done before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ShapeError
from ollama_engine.input import Batch
from ollama_engine.kvcache.cells import MAX_SEQUENCES, Cells
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.paged import LEAST_ROOM, choose_room
from ollama_engine.kvcache.span import CellSpan
from ollama_engine.kvcache.visibility import Visibility
from tests.kvcache.drawing import ints, last_position, place, table


def listed(cells: Cells, sequences: Any, first: Any, last: Any) -> list[list[int]]:
    """The cells of each row."""
    ranges = np.full((len(sequences), 2), -7, dtype=np.int32)
    out = np.full(cells.n_indices(sequences) + 3, -7, dtype=np.int32)
    n = cells.fill_indices(sequences, first, last, ranges, out)
    assert n == cells.n_indices(sequences)
    assert (out[n:] == -7).all()
    return [out[begin:end].tolist() for begin, end in ranges]


def rows_of(drawn: str) -> tuple[Any, Any]:
    """(positions, sequences) of "a1 b3"."""
    rows = [place(word) for word in drawn.split()]
    return ints(p for _, p in rows), ints(s[0] for s, _ in rows)


@pytest.mark.parametrize(
    ("cells", "rows", "expected", "limits"),
    [
        ("a0 a1 a2", "a0 a1 a2", [[0], [0, 1], [0, 1, 2]], {}),
        ("a0 . a1 .", "a1", [[0, 2]], {}),
        ("a2 a0 a1", "a2 a0", [[1, 2, 0], [1]], {}),
        ("a5 a3 a1 a4 a2", "a5 a4", [[2, 4, 1, 3, 0], [2, 4, 1, 3]], {}),
        ("a0 b0 a1 b1", "a1 b1", [[0, 2], [1, 3]], {}),
        ("a0 a1", "b0", [[]], {}),
        ("ab0 ab1 a2 b2", "a2 b2", [[0, 1, 2], [0, 1, 3]], {}),
        ("a0 a5 a9", "a5 a7 a9", [[0, 1], [0, 1], [0, 1, 2]], {}),
        ("a1 a2 a3 a0", "a3 a2", [[1, 2], [0, 1]], {"window": 2}),
        ("a2 a3 a4 a5 a6", "a4 a5 a6", [[1, 2], [1, 2, 3], [4]], {"chunk": 3}),
    ],
)
def test_indices(cells: str, rows: str, expected: list[list[int]], limits: dict[str, int]) -> None:
    positions, sequences = rows_of(rows)
    assert listed(table(cells), sequences, Visibility(**limits).first(positions), positions) == expected


def test_a_row_that_ends_before_it_begins_sees_nothing() -> None:
    assert listed(table("a0 a1"), ints([0]), ints([1]), ints([0])) == [[]]


def test_rows_of_one_sequence_share_its_indices() -> None:
    cells = table("a0 a1 a2 b0")
    assert cells.n_indices(ints([0, 0, 1, 0])) == 4
    assert cells.n_indices(ints([])) == 0


def test_wrong_arrays() -> None:
    cells = table("a0 a1")
    row, room = ints([0]), np.zeros(2, dtype=np.int32)
    for ranges, out in (
        (np.zeros((2, 2), np.int32), room), (np.zeros((1, 2), np.int64), room), (np.zeros(2, np.int32), room),
        (np.zeros((1, 2), np.int32), room[:1]), (np.zeros((1, 2), np.int32), room[None]),
        (np.zeros((1, 2), np.int32), [0, 0]), (np.zeros((1, 2), np.int32), np.zeros(4, np.int32)[::2]),
    ):  # fmt: skip
        with pytest.raises(ShapeError):
            cells.fill_indices(row, row, row, ranges, out)
    ranges = np.zeros((1, 2), np.int32)
    ranges.flags.writeable = False
    with pytest.raises(ShapeError):
        cells.fill_indices(row, row, row, ranges, room)
    with pytest.raises(ValueError, match="sequences are 0"):
        cells.fill_indices(ints([MAX_SEQUENCES]), row, row, np.zeros((1, 2), np.int32), room)


class Walk:
    """Random changes of a table, as a cache makes them; after each, indices are compared with masks."""

    def __init__(self, seed: int, n_cells: int, window: int | None) -> None:
        self.rng = np.random.default_rng(seed)
        self.cells = Cells(n_cells, window=window)
        self.visibility = Visibility(window=window)

    def step(self) -> None:
        """Tokens of some sequences; mostly one of each, as when they decode."""
        n = int(self.rng.integers(1, 6))
        some = self.rng.choice(6, n, replace=bool(self.rng.random() < 0.3)).astype(np.int32)
        if n > self.cells.n_free:
            self.cells.remove(int(self.rng.integers(6)))
            return
        positions = []
        for i, sequence in enumerate(some):
            before = sum(1 for other in some[:i] if other == sequence)
            positions.append(last_position(self.cells, int(sequence)) + 1 + before)
        self.cells.slide(ints(positions), some)
        places = self.cells.find_places(ints(positions), some)
        assert places is not None
        self.cells.place(places, ints(positions), some)

    def change(self) -> None:
        sequence, other = (int(s) for s in self.rng.choice(6, 2, replace=False))
        last = last_position(self.cells, sequence)
        begin = int(self.rng.integers(0, max(last, 0) + 1))
        match int(self.rng.integers(5)):
            case 0:
                self.cells.remove(sequence, begin)
            case 1:
                self.cells.remove(sequence, begin, begin + 2)
            case 2 if last_position(self.cells, other) < 0:
                self.cells.share(sequence, other, begin + 1)
            case 3:
                moves = self.cells.shift_plan(sequence, begin, 2)
                if moves is not None:
                    self.cells.shift(sequence, begin, 2, moves)
            case 4:
                self.cells.slide()

    def compare(self) -> None:
        sequences = self.rng.choice(7, 5).astype(np.int32)
        positions = ints(max(last_position(self.cells, int(s)) - int(self.rng.integers(0, 2)), 0) for s in sequences)
        first = self.visibility.first(positions)
        mask = MaskBuffer().fill(self.cells, CellSpan(0, len(self.cells)), sequences, first, positions)
        for shown, row in zip(listed(self.cells, sequences, first, positions), mask, strict=True):
            assert sorted(shown) == np.flatnonzero(row == 0).tolist()
            assert (np.diff(self.cells.positions[shown]) > 0).all()


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("seed", range(6))
def test_indices_and_masks_show_the_same(seed: int, window: int | None) -> None:
    walk = Walk(seed, 48, window)
    for _ in range(250):
        walk.step()
        if walk.rng.random() < 0.2:
            walk.change()
        if walk.rng.random() < 0.7:
            walk.compare()
        walk.cells.check()


def test_the_tokens_of_an_image_see_each_other() -> None:
    positions, sequences = rows_of("a0 a1 a2 a3")
    batch = Batch(ints([0] * 4), positions, sequences, ints([3]), blocks=ints([-1, 7, 7, -1]))
    shown = listed(table("a0 a1 a2 a3"), sequences, Visibility().first(positions), Visibility().last(batch))
    assert shown == [[0], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3]]


def test_room_lasts() -> None:
    """Decoding changes it as often as the indices double."""
    room, changes = 0, 0
    for needed in range(5, 100_000, 32):
        before, room = room, choose_room(needed, 1 << 30, room)
        assert room >= needed
        changes += room != before
    assert changes <= 8


def test_room_shrinks_and_is_bounded() -> None:
    assert choose_room(10, 1 << 30, 4 * LEAST_ROOM) == 4 * LEAST_ROOM
    assert choose_room(10, 1 << 30, 4 * LEAST_ROOM + 1) == LEAST_ROOM
    assert choose_room(700, 700, 0) == 700
    assert choose_room(5000, 6000, 0) == 6000
    assert choose_room(10, 300, 8192) == 300
