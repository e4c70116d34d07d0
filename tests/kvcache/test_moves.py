"""Shifting and sharing: what the cache holds afterwards, for every type, layout and kind of rotation."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import move
from tests.kvcache.drawing import draw, ints, table
from tests.kvcache.world import ROPES, TOLERANCE, World, world
from tests.support.suite import scaled

LAYOUTS = [(dtype, True) for dtype in TOLERANCE] + [(dtype, False) for dtype in ("f32", "f16", "bf16")]
each_layout = pytest.mark.parametrize(("dtype", "flash"), LAYOUTS)


def run(sequence: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(sequence, position) for position in range(begin, end)]


@each_layout
def test_shift_of_one_sequence(dtype: Any, flash: bool) -> None:
    with world(dtype=dtype, flash_attention=flash) as w:
        w.append(run(0, 0, 40) + run(1, 0, 9))
        w.shift(0, 4, 18)
        w.check()
        w.append(run(0, 22, 26))
        w.shift(0, 4, 3)
        w.check()


@each_layout
def test_shared_cells_are_copied_before_they_turn(dtype: Any, flash: bool) -> None:
    with world(dtype=dtype, flash_attention=flash) as w:
        w.append(run(0, 0, 20))
        w.share(0, 1, 16)
        w.append([*run(1, 16, 20), *run(0, 20, 24)])
        before = w.stored(range(20))
        w.shift(1, 2, 5)
        w.check()
        assert w.cache.usage.shared == 2
        for (keys, values), (old_keys, old_values) in zip(w.stored(range(16)), before, strict=True):
            assert (keys == old_keys[:16]).all()
            assert (values == old_values[:16]).all()


@pytest.mark.parametrize("rope", ROPES)
def test_every_rotation(rope: str) -> None:
    """Keys as if they had been rotated for the new positions at once; YaRN's magnitude is not applied twice."""
    with world(512, rope=rope) as w:
        w.append(run(3, 0, 400))
        for discard in (100, 1, 150):
            w.shift(3, 8, discard)
            w.check()


@pytest.mark.parametrize(
    ("before", "call", "plan", "after"),
    [
        ("a0 a1 a2 a3", (0, 1, 1), ([2, 3], [2, 3]), "a0 . a1 a2"),
        ("a0 a1 a2 a3", (0, 0, 4), ([], []), ". . . ."),
        ("a0 a1 a2 a3", (0, 2, 9), ([], []), "a0 a1 . ."),
        ("a0 ab1 ab2 b3", (0, 0, 1), ([1, 2], None), None),
        ("a0 ab1 ab2 .", (0, 0, 1), ([1, 2], [0, 3]), "a0 b1 b2 a1"),
        ("a0 a1 ab2 b3", (0, 0, 2), ([2], [0]), "a0 . b2 b3"),
        ("ab0 ab1 ab2 a3 .", (0, 0, 2), ([2, 3], [4, 3]), "b0 b1 b2 a1 a0"),
        ("b0 b1 . .", (0, 0, 2), ([], []), "b0 b1 . ."),
        ("ab3 ab2 ab1 . a0 .", (0, 0, 1), ([2, 1, 0], [3, 4, 5]), "b3 b2 b1 a0 a1 a2"),
    ],
)
def test_shift_plan(before: str, call: tuple[int, int, int], plan: Any, after: str | None) -> None:
    cells = table(before)
    moves = cells.shift_plan(*call)
    assert draw(cells) == draw(table(before))
    assert cells.can_shift(*call) == (moves is not None)
    if after is None:
        assert moves is None
        return
    assert moves is not None
    assert (moves.sources.tolist(), moves.targets.tolist()) == plan
    cells.shift(*call, moves)
    assert draw(cells) == draw(table(after))
    cells.check()


@pytest.mark.parametrize(
    ("before", "without", "can"),
    [
        ("a0 ab1 ab2 b3", [], False),
        ("a0 ab1 ab2 b3", [1], True),  # nobody shares them then
        ("a0 ab1 ab2 c0", [2], True),  # one goes to that cell
        ("abc0 abc1 abc2 c3", [2], False),
        ("abc0 abc1 abc2 c3", [1, 2, 2], True),
        ("abc0 abc1 abc2 c3 . .", [], True),
    ],
)
def test_a_shift_without_others(before: str, without: list[int], can: bool) -> None:
    cells = table(before)
    assert cells.can_shift(0, 0, 1, ints(without)) is can
    assert draw(cells) == draw(table(before))
    cells.check()


def test_too_few_cells_to_copy_into_changes_nothing() -> None:
    with world(24) as w:
        w.append(run(0, 0, 20))
        w.share(0, 1, 20)
        before = draw(w.cache.cells)
        with pytest.raises(ContextOverflowError, match="too few of 24 are free"):
            w.shifter.shift(1, 2, 5)
        assert draw(w.cache.cells) == before
        w.check()
        w.shift(1, 2, 14)
        w.check()


def test_nonsense_is_refused() -> None:
    with world() as w:
        w.append(run(0, 0, 9))
        for begin, discard in ((-1, 2), (0, 0), (3, -2)):
            with pytest.raises(ValueError, match="a shift begins at 0 or later and discards 1 or more"):
                w.shifter.shift(0, begin, discard)
        with pytest.raises(ValueError, match="sequence 0 has tokens"):
            w.cache.share(0, 0, 4)
        w.check()


def test_a_failing_computation_takes_only_the_sequence_that_shifts() -> None:
    with world() as w:
        w.append(run(0, 0, 20))
        w.share(0, 1, 12)
        w.append(run(1, 12, 20))
        w.broken = True
        with pytest.raises(RuntimeError, match="as if the device"):
            w.shifter.shift(1, 3, 4)
        w._forget(1, lambda p: p >= 3)
        w.check()
        assert w.cache.can_resume(1, 3)
        assert w.cache.can_resume(0, 20)


def test_moves_need_no_memory_beyond_what_was_reserved() -> None:
    with world(600) as w:
        w.shifter.reserve()
        reserved = w._backend.graph_bytes()
        with patch.object(w, "check"):
            w.append(run(0, 0, 280))
            taken = w._backend.graph_bytes()
            w.share(0, 1, 280)
            w.shift(1, 2, 5)
            w.remove(0, 0, 100)
            w.shift(1, 4, 9)
        assert w._backend.graph_bytes() == taken
        assert all(reserved[name] <= taken[name] for name in taken)


SEQUENCES = (0, 1, 70)
which = st.sampled_from(SEQUENCES)


class MovesAgainstDictionaries(RuleBasedStateMachine):
    """Pieces of 5 cells, so that moves take several graphs."""

    w: World

    @initialize(
        layout=st.sampled_from(LAYOUTS),
        rope=st.sampled_from(sorted(ROPES)),
        limit=st.sampled_from(["", "window", "chunk"]),
    )
    def start(self, layout: tuple[str, bool], rope: str, limit: str) -> None:
        self.pieces = patch.object(move, "PIECE", 5)
        self.pieces.start()
        limits = {limit: 6} if limit else {}
        self.manager = world(32, rope=rope, dtype=layout[0], flash_attention=layout[1], **limits)
        self.w = self.manager.__enter__()

    def teardown(self) -> None:
        if hasattr(self, "w"):
            self.manager.__exit__(None, None, None)
            self.pieces.stop()

    @rule(sequence=which, n=st.integers(1, 12))
    def append(self, sequence: int, n: int) -> None:
        begin = max(self.w.held.get(sequence, {}), default=-1) + 1
        rows = run(sequence, begin, begin + n)
        try:
            self.w.append(rows)
        except ContextOverflowError:
            assert n > self.w.cache.room

    @rule(source=which, into=which, end=st.integers(0, 30))
    def share(self, source: int, into: int, end: int) -> None:
        if not self.w.held.get(into):
            self.w.share(source, into, end)

    @rule(sequence=which, begin=st.integers(0, 30), end=st.none() | st.integers(0, 40))
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        self.w.remove(sequence, begin, end)

    @rule(sequence=which, begin=st.integers(0, 20), discard=st.integers(1, 12))
    def shift(self, sequence: int, begin: int, discard: int) -> None:
        needed, free = self.w.copies_for_shift(sequence, begin, discard)
        for n in range(1, len(SEQUENCES)):
            for without in itertools.combinations([other for other in SEQUENCES if other != sequence], n):
                copies, room = self.w.copies_for_shift(sequence, begin, discard, without)
                with nullcontext() if copies <= room else pytest.raises(ContextOverflowError):
                    self.w.shifter.require_shift(sequence, begin, discard, without)
        if needed <= free:
            self.w.shift(sequence, begin, discard)
            return
        with pytest.raises(ContextOverflowError):
            self.w.shifter.require_shift(sequence, begin, discard)
        with pytest.raises(ContextOverflowError):
            self.w.shifter.shift(sequence, begin, discard)

    @rule(sequence=which, position=st.integers(0, 40))
    def resume(self, sequence: int, position: int) -> None:
        first = self.w.cache.visibility.first_of(position)
        there = all(p in self.w.held.get(sequence, {}) for p in range(first, position))
        assert self.w.cache.can_resume(sequence, position) == there

    @invariant()
    def holds_what_it_must(self) -> None:
        if hasattr(self, "w"):
            self.w.check()


MovesAgainstDictionaries.TestCase.settings = settings(max_examples=scaled(40, quick=10), stateful_step_count=20)
TestMovesAgainstDictionaries = MovesAgainstDictionaries.TestCase
