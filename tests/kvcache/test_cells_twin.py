"""The cell table in C beside its numpy twin: every operation, results and tables, over random prefix_cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ollama_engine.kvcache.cells import MAX_SEQUENCES, Cells, Moves
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.span import CellSpan
from ollama_engine.kvcache.visibility import Visibility
from tests.kvcache.cells_twin import CellsTwin
from tests.kvcache.drawing import ends, ints
from tests.suite import scaled

sequences = st.sampled_from([0, 1, 2, 63])
positions = st.integers(0, 40)


class CellsBesideTwin(RuleBasedStateMachine):
    """Sizes below, at and above words of 64 cells; positions with gaps, and in batches that do not ascend."""

    @initialize(size=st.sampled_from([1, 12, 63, 64, 65, 130]))
    def start(self, size: int) -> None:
        self.cells, self.twin = Cells(size), CellsTwin(size)

    def both(self, name: str, *arguments: Any) -> Any:
        """The same call of both, with the same result."""
        got, expected = getattr(self.cells, name)(*arguments), getattr(self.twin, name)(*arguments)
        assert type(got) is type(expected)
        if isinstance(expected, Moves):
            assert [a.tolist() for a in got] == [a.tolist() for a in expected]
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
            begin = max([self.twin.last_position(sequence), *(p for s, p in rows if s == sequence)]) + 1 + gap
            rows += [(sequence, position) for position in range(begin, begin + n)]
        if mixed.random() < 0.3:
            mixed.shuffle(rows)
        batch = ints(p for _, p in rows), ints(s for s, _ in rows)
        self.both("next_positions", *batch)
        found = self.both("find_places", *batch)
        if found is not None:
            self.both("place", found, *batch)
        self.both("span", batch[1])

    @rule(sequence=sequences, begin=positions, end=st.none() | positions)
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        self.both("remove", sequence, begin, end)

    @rule(drops=st.dictionaries(sequences, positions, max_size=3))
    def remove_below(self, drops: dict[int, int]) -> None:
        self.both("n_free_without", ends(drops))
        self.both("usage_without", ends(drops))
        self.both("remove_below", ends(drops))

    @rule(window=st.integers(1, 6))
    def slide(self, window: int) -> None:
        """What a cache of windows does in each step."""
        keep = np.maximum(self.twin.next - window, 0)
        self.both("n_free_without", keep)
        self.both("usage_without", keep)
        self.both("remove_below", keep)

    @rule(source=sequences, into=sequences, end=positions)
    def share(self, source: int, into: int, end: int) -> None:
        if self.twin.last_position(into) < 0:
            self.both("share", source, into, end)
            return
        for table in (self.cells, self.twin):
            with pytest.raises(ValueError, match=f"sequence {into} has tokens"):
                table.share(source, into, end)

    @rule(sequence=sequences, begin=positions, discard=st.integers(1, 12))
    def shift(self, sequence: int, begin: int, discard: int) -> None:
        plan = self.both("shift_plan", sequence, begin, discard)
        if plan is not None:
            self.both("shift", sequence, begin, discard, plan)

    @rule(piece=st.integers(1, 50))
    def defrag(self, piece: int) -> None:
        plan = self.both("defrag_plan")
        self.both("move", Moves(plan.sources[:piece], plan.targets[:piece]))

    @rule(sequence=sequences, begin=st.integers(-3, 40), end=st.integers(-3, 40))
    def has_all(self, sequence: int, begin: int, end: int) -> None:
        self.both("has_all", sequence, begin, end)

    @rule(
        rows=st.lists(st.tuples(positions, sequences), max_size=4),
        limits=st.sampled_from([{}, {"window": 3}, {"chunk": 4}]),
        edges=st.tuples(st.integers(0, 130), st.integers(0, 130)),
    )
    def look(self, rows: list[tuple[int, int]], limits: dict[str, int], edges: tuple[int, int]) -> None:
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
        assert self.cells.owners.tolist() == self.twin.owners.tolist()
        assert len(self.cells) == len(self.twin)
        assert (self.cells.n_used, self.cells.n_free) == (self.twin.n_used, self.twin.n_free)
        self.both("extent")
        assert self.cells.next_positions().tolist() == self.twin.next.tolist()
        for sequence in (0, 1, 2, 63):
            self.both("last_position", sequence)
            self.both("span", ints([sequence]))


def test_any_history_of_calls() -> None:
    run_state_machine_as_test(
        CellsBesideTwin, settings=settings(max_examples=scaled(120, quick=30), stateful_step_count=30, deadline=None)
    )


def test_many_windows_of_a_large_table() -> None:
    """64 sequences slide over a table that they fill again and again, sharing a beginning."""
    cells, twin = Cells(2000), CellsTwin(2000)
    rng = np.random.default_rng(0)
    for table in (cells, twin):
        table.place(ints(range(20)), ints(range(20)), ints([0] * 20))
        for target in range(1, 20):
            table.share(0, target, 20)
    for step in range(120):
        rows = np.sort(rng.choice(MAX_SEQUENCES, rng.integers(1, 65), replace=False)).astype(np.int32)
        batch = np.repeat(twin.next[rows], 1).astype(np.int32), rows
        for window in (25, 24):
            keep = np.maximum(twin.next_positions(*batch) - window, 0)
            assert cells.usage_without(keep) == twin.usage_without(keep)
        cells.remove_below(keep)
        twin.remove_below(keep)
        found = cells.find_places(*batch)
        assert found is not None
        assert found.tolist() == twin.find_places(*batch).tolist()  # type: ignore[union-attr]
        cells.place(found, *batch)
        twin.place(found, *batch)
        if step % 10 == 0:
            cells.check()
            assert (cells.positions == twin.positions).all()
            assert (cells.owners == twin.owners).all()
