"""The cell table in C beside its numpy twin: every operation, results and tables, over random histories of calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.span import CellSpan
from ollama_engine.kvcache.visibility import Visibility
from tests.kvcache.cells_twin import CellsTwin
from tests.kvcache.drawing import ints, last_position
from tests.support.suite import scaled

SEQUENCES = (0, 1, 2, 70)
sequences = st.sampled_from(SEQUENCES)
positions = st.integers(0, 40)
limits = st.sampled_from([{}, {}, {"window": 1}, {"window": 6, "memory": 3}, {"chunk": 5}, {"chunk": 4, "memory": 9}])


class CellsBesideTwin(RuleBasedStateMachine):
    """Sizes below, at and above words of 64 cells; positions with gaps, and in batches that do not ascend."""

    @initialize(size=st.sampled_from([1, 12, 63, 64, 65, 130]), reach=limits)
    def start(self, size: int, reach: dict[str, int]) -> None:
        self.cells, self.twin = Cells(size, **reach), CellsTwin(size, **reach)

    def both(self, name: str, *arguments: Any) -> Any:
        """The same call of both, with the same result."""
        got, expected = getattr(self.cells, name)(*arguments), getattr(self.twin, name)(*arguments)
        assert type(got) is type(expected)
        if isinstance(expected, tuple):
            assert [np.asarray(a).tolist() for a in got] == [np.asarray(a).tolist() for a in expected]
        elif isinstance(expected, np.ndarray):
            assert got.tolist() == expected.tolist()
            assert got.dtype == expected.dtype
        else:
            assert got == expected
        return got

    @rule(pieces=st.lists(st.tuples(sequences, st.integers(1, 9), st.integers(0, 2)), max_size=4), mixed=st.randoms())
    def append(self, pieces: list[tuple[int, int, int]], mixed: Any) -> None:
        rows: list[tuple[int, int]] = []
        for sequence, n, gap in pieces:
            begin = max([last_position(self.cells, sequence), *(p for s, p in rows if s == sequence)]) + 1 + gap
            rows += [(sequence, position) for position in range(begin, begin + n)]
        if mixed.random() < 0.3:
            mixed.shuffle(rows)
        batch = ints(p for _, p in rows), ints(s for s, _ in rows)
        self.both("room_for", *batch)
        if mixed.random() < 0.7:
            self.both("slide", *batch)
        found = self.both("find_places", *batch)
        if found is not None:
            self.both("place", found, *batch)
        self.both("span", batch[1])

    @rule(sequence=sequences, begin=positions, end=st.none() | positions)
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        self.both("remove", sequence, begin, end)

    @rule(without=st.lists(sequences, max_size=5))
    def room(self, without: list[int]) -> None:
        self.both("room", ints(without))

    @rule()
    def slide(self) -> None:
        self.both("slide")

    @rule(source=sequences, into=sequences, end=positions)
    def share(self, source: int, into: int, end: int) -> None:
        if last_position(self.cells, into) < 0:
            self.both("share", source, into, end)
            return
        for table in (self.cells, self.twin):
            with pytest.raises(ValueError, match=f"sequence {into} has tokens"):
                table.share(source, into, end)

    @rule(
        sequence=sequences, begin=positions, discard=st.integers(1, 12), without=st.lists(sequences, max_size=3)
    )  # fmt: skip
    def shift(self, sequence: int, begin: int, discard: int, without: list[int]) -> None:
        self.both("can_shift", sequence, begin, discard, ints(s for s in without if s != sequence))
        plan = self.both("shift_plan", sequence, begin, discard)
        if plan is not None:
            self.both("shift", sequence, begin, discard, plan)

    @rule(edges=st.tuples(st.integers(0, 130), st.integers(0, 130)), most=st.integers(0, 40))
    def pack(self, edges: tuple[int, int], most: int) -> None:
        begin, end = sorted(min(edge, len(self.twin)) for edge in edges)
        self.both("pack_plan", begin, end, most)
        self.both("pack", begin, end, most)

    @rule(sequence=sequences, begin=st.integers(-3, 40), end=st.integers(-3, 40))
    def between(self, sequence: int, begin: int, end: int) -> None:
        for name in ("has_all", "of"):
            self.both(name, sequence, begin, end)

    @rule(
        rows=st.lists(st.tuples(positions, sequences), min_size=1, max_size=6),
        grouped=st.booleans(),
        limits=st.sampled_from([{}, {"window": 3}, {"chunk": 4}]),
        edges=st.tuples(st.integers(0, 130), st.integers(0, 130)),
    )
    def look(
        self, rows: list[tuple[int, int]], grouped: bool, limits: dict[str, int], edges: tuple[int, int]
    ) -> None:  # fmt: skip
        if grouped:  # rows of one sequence side by side, as in prompts
            rows = sorted(rows, key=lambda row: row[1])
        begin, end = sorted(min(edge, len(self.twin)) for edge in edges)
        last, given = ints(p for p, _ in rows), ints(s for _, s in rows)
        first = Visibility(**limits).first(last)
        mask = MaskBuffer().fill(self.cells, CellSpan(begin, end), given, first, last)
        expected = np.where(self.twin.visible(begin, end, given, first, last), 0, -np.inf)
        assert mask.tolist() == expected.tolist()

    @invariant()
    def tables_agree(self) -> None:
        if not hasattr(self, "cells"):
            return
        self.cells.check()
        assert self.cells.positions.tolist() == self.twin.positions.tolist()
        assert (len(self.cells), self.cells.n_free) == (len(self.twin), self.twin.n_free)
        self.both("usage")
        self.both("room")
        for sequence in SEQUENCES:
            self.both("of", sequence)
            self.both("span", ints([sequence]))


def test_any_history_of_calls() -> None:
    run_state_machine_as_test(
        CellsBesideTwin, settings=settings(max_examples=scaled(120, quick=30), stateful_step_count=30)
    )


def test_many_windows_of_a_large_table() -> None:
    """64 sequences slide over a table that they fill again and again, sharing a beginning."""
    cells, twin = Cells(2000, window=20, memory=4), CellsTwin(2000, window=20, memory=4)
    rng = np.random.default_rng(0)
    for table in (cells, twin):
        table.place(ints(range(20)), ints(range(20)), ints([0] * 20))
        for target in range(1, 64):
            table.share(0, target, 20 if target < 20 else 0)
    for step in range(120):
        rows = np.sort(rng.choice(64, rng.integers(1, 65), replace=False)).astype(np.int32)
        batch = twin.next[rows].astype(np.int32), rows
        assert cells.room_for(*batch) == twin.room_for(*batch)
        assert cells.usage() == twin.usage()
        for table in (cells, twin):
            table.slide(*batch)
        places = cells.find_places(*batch)
        assert places is not None
        assert places.tolist() == twin.find_places(*batch).tolist()  # type: ignore[union-attr]
        cells.place(places, *batch)
        twin.place(places, *batch)
        if step % 10 == 0:
            cells.check()
            assert (cells.positions == twin.positions).all()
            assert all(cells.of(s)[0].tolist() == twin.of(s)[0].tolist() for s in range(64))
