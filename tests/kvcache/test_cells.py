"""The cell table by hand-written cases, and against a naive twin over random histories."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ollama_engine.kvcache.cells import MAX_SEQUENCES, Cells
from ollama_engine.kvcache.visibility import Visibility
from tests.kvcache.drawing import draw, ints, table


@pytest.mark.parametrize(
    ("before", "call", "result", "after"),
    [
        ("....", ("find_free", 2), [0, 1], "...."),
        ("a0 . a1 .", ("find_free", 2), [1, 3], "a0 . a1 ."),
        ("a0 . a1 .", ("find_free", 3), None, "a0 . a1 ."),
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
    ("cells", "drops", "free"),
    [
        ("a0 a1 a2 .", [], 1),
        ("a0 a1 a2 .", [(0, 2)], 3),
        ("ab0 ab1 a2 b2", [(0, 2)], 0),
        ("ab0 ab1 a2 b2", [(0, 2), (1, 1)], 1),
        ("ab0 ab1 a2 b2", [(0, 3), (1, 3)], 4),
    ],
)
def test_what_would_be_free_changes_nothing(cells: str, drops: list[tuple[int, int]], free: int) -> None:
    made = table(cells)
    assert made.n_free_without(drops) == free
    assert draw(made) == draw(table(cells))


def test_a_table_has_cells_and_64_sequences() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Cells(0)
    for sequence in (-1, MAX_SEQUENCES):
        with pytest.raises(ValueError, match="0 to 63"):
            Cells(4).remove(sequence)
    cells = Cells(1)
    cells.place(ints([0]), ints([7]), ints([MAX_SEQUENCES - 1]))
    assert cells.last_position(MAX_SEQUENCES - 1) == 7
    cells.check()


@dataclass
class Twin:
    """The same in dictionaries: cell -> (position, sequences)."""

    size: int
    used: dict[int, tuple[int, set[int]]] = field(default_factory=dict)

    def of(self, sequence: int) -> dict[int, int]:
        return {cell: position for cell, (position, owners) in self.used.items() if sequence in owners}


SIZE = 12
sequences = st.sampled_from([0, 1, 2, 63])
positions = st.integers(0, 2 * SIZE)


class CellsAgainstTwin(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cells = Cells(SIZE)
        self.twin = Twin(SIZE)

    @rule(sequence=sequences, n=st.integers(1, 5))
    def append(self, sequence: int, n: int) -> None:
        free = [cell for cell in range(SIZE) if cell not in self.twin.used]
        found = self.cells.find_free(n)
        if n > len(free):
            assert found is None
            return
        assert found is not None
        assert found.tolist() == free[:n]
        begin = max(self.twin.of(sequence).values(), default=-1) + 1
        self.cells.place(found, ints(range(begin, begin + n)), ints([sequence] * n))
        for i, cell in enumerate(free[:n]):
            self.twin.used[cell] = (begin + i, {sequence})

    @rule(sequence=sequences, begin=positions, end=st.none() | positions)
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        chosen = [c for c, p in self.twin.of(sequence).items() if p >= begin and (end is None or p < end)]
        assert self.cells.remove(sequence, begin, end) == len(chosen)
        for cell in chosen:
            self.twin.used[cell][1].discard(sequence)
            if not self.twin.used[cell][1]:
                del self.twin.used[cell]

    @rule(ends=st.dictionaries(sequences, positions, max_size=3))
    def remove_below(self, ends: dict[int, int]) -> None:
        free = self.cells.n_free_without(ends.items())
        self.cells.remove_below(list(ends.items()))
        assert self.cells.n_free == free
        for sequence, end in ends.items():
            for cell in [c for c, p in self.twin.of(sequence).items() if p < end]:
                self.twin.used[cell][1].discard(sequence)
                if not self.twin.used[cell][1]:
                    del self.twin.used[cell]

    @precondition(lambda self: any(not self.twin.of(s) for s in (0, 1, 2, 63)))
    @rule(source=sequences, end=positions)
    def share(self, source: int, end: int) -> None:
        target = next(s for s in (0, 1, 2, 63) if not self.twin.of(s))
        chosen = [c for c, p in self.twin.of(source).items() if p < end]
        assert self.cells.share(source, target, end) == len(chosen)
        for cell in chosen:
            self.twin.used[cell][1].add(target)

    @rule(rows=st.lists(st.tuples(positions, sequences), min_size=1, max_size=4), window=st.none() | st.integers(1, 6))
    def look(self, rows: list[tuple[int, int]], window: int | None) -> None:
        extent = max(1, self.cells.extent())
        last = ints(p for p, _ in rows)
        seen = self.cells.visible(extent, ints(s for _, s in rows), Visibility(window=window).first(last), last)
        for (position, sequence), row in zip(rows, seen, strict=True):
            low = -1 if window is None else position - window
            assert set(np.flatnonzero(row)) == {c for c, p in self.twin.of(sequence).items() if low < p <= position}

    @invariant()
    def counts_agree(self) -> None:
        self.cells.check()
        assert self.cells.n_used == len(self.twin.used)
        assert self.cells.n_free == SIZE - len(self.twin.used)
        assert self.cells.extent() == max(self.twin.used, default=-1) + 1
        for sequence in (0, 1, 2, 63):
            assert self.cells.last_position(sequence) == max(self.twin.of(sequence).values(), default=-1)


CellsAgainstTwin.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCellsAgainstTwin = CellsAgainstTwin.TestCase
