"""Shift and truncation plans: the oldest goes, what must be kept stays, groups leave together."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.errors import ContextOverflowError
from ollama_engine.runner.request.inputs import Group, groups_of
from ollama_engine.runner.schedule.overflow import plan_eviction, plan_shift, plan_truncation


@pytest.mark.parametrize(
    ("n_tokens", "num_keep", "num_ctx", "groups", "need", "expected"),
    [
        (16, 0, 16, (), 1, (0, 8)),
        (16, 4, 16, (), 1, (4, 6)),
        (15, 4, 16, (), 1, (4, 5)),  # half, rounded down
        (5, 4, 16, (), 1, (4, 1)),  # at least one
        (16, 4, 16, (), 9, (4, 9)),  # more when more is needed
        (16, 4, 16, ((8, 13),), 1, (4, 9)),  # to the end of the group it would split
        (16, 4, 16, ((4, 10),), 1, (4, 6)),  # a group at the edge leaves as a whole
        (16, 4, 16, ((0, 4), (10, 16)), 1, (4, 6)),  # kept and later groups are left alone
        (16, 4, 16, ((4, 16),), 1, (4, 12)),  # all that is not kept
    ],
)
def test_shift(
    n_tokens: int, num_keep: int, num_ctx: int, groups: tuple[Group, ...], need: int, expected: tuple[int, int]
) -> None:
    assert plan_shift(n_tokens, num_keep, num_ctx, groups, need) == expected


@pytest.mark.parametrize(
    ("n_tokens", "num_keep", "num_ctx", "groups", "need", "message"),
    [
        (16, 4, 16, ((3, 6),), 1, "num_keep 4 ends within inputs 3 to 6"),
        (16, 16, 16, (), 1, "1 more tokens do not fit"),
        (16, 8, 16, (), 9, "9 more tokens do not fit"),
        (8, 8, 16, (), 1, "num_keep is 0 or more, and less than the 8 tokens"),
        (8, -1, 16, (), 1, "got -1"),
    ],
)
def test_shift_refused(
    n_tokens: int, num_keep: int, num_ctx: int, groups: tuple[Group, ...], need: int, message: str
) -> None:
    with pytest.raises(ContextOverflowError, match=message):
        plan_shift(n_tokens, num_keep, num_ctx, groups, need)


@pytest.mark.parametrize(
    ("n_inputs", "num_ctx", "num_keep", "groups", "keep", "dropped"),
    [
        (8, 8, 4, (), 4, range(4, 4)),
        (3, 8, 4, (), 3, range(3, 3)),
        (10, 8, 0, (), 0, range(2)),
        (10, 8, 4, (), 4, range(4, 6)),
        (10, 8, 4, ((5, 8),), 4, range(4, 8)),  # the group it would split goes as a whole
        (10, 8, 4, ((3, 6),), 3, range(3, 6)),  # so does one that num_keep splits
        (10, 8, 4, ((0, 3), (6, 10)), 4, range(4, 6)),
    ],
)
def test_truncation(
    n_inputs: int, num_ctx: int, num_keep: int, groups: tuple[Group, ...], keep: int, dropped: range
) -> None:
    assert plan_truncation(n_inputs, num_ctx, num_keep, groups) == (keep, dropped)


@pytest.mark.parametrize(
    ("num_keep", "groups", "message"),
    [(8, (), "num_keep is 0 to 7"), (-1, (), "num_keep is 0 to 7"), (4, ((4, 10),), "the last 6 inputs")],
)
def test_truncation_refused(num_keep: int, groups: tuple[Group, ...], message: str) -> None:
    with pytest.raises(ContextOverflowError, match=message):
        plan_truncation(10, 8, num_keep, groups)


@st.composite
def grouped(draw: st.DrawFn) -> tuple[int, tuple[Group, ...]]:
    numbers = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 5]), min_size=1, max_size=40))
    n = len(numbers)
    return n, groups_of([min(k, n - 1 - i) for i, k in enumerate(numbers)])


def splits(at: int, groups: tuple[Group, ...]) -> bool:
    return any(begin < at < end for begin, end in groups)


@given(grouped(), st.integers(0, 40), st.integers(1, 48), st.integers(1, 8))
def test_shift_invariants(sequence: tuple[int, tuple[Group, ...]], num_keep: int, num_ctx: int, need: int) -> None:
    n, groups = sequence
    try:
        keep, discard = plan_shift(n, num_keep, num_ctx, groups, need)
    except ContextOverflowError:
        assert num_keep >= n or need > num_ctx - num_keep or splits(num_keep, groups)
        return
    assert keep == num_keep
    assert not splits(keep + discard, groups)
    assert discard >= max(1, (n - keep) // 2)
    assert keep + discard <= n
    assert n - discard + need <= num_ctx


@given(grouped(), st.integers(0, 40), st.integers(1, 48))
def test_truncation_invariants(sequence: tuple[int, tuple[Group, ...]], num_keep: int, num_ctx: int) -> None:
    n, groups = sequence
    try:
        keep, dropped = plan_truncation(n, num_ctx, num_keep, groups)
    except ContextOverflowError:
        assert num_keep >= num_ctx or any(end == n and end - begin > num_ctx - num_keep for begin, end in groups)
        return
    assert keep <= num_keep
    assert dropped.start == keep
    assert not splits(keep, groups)
    assert not splits(dropped.stop, groups)
    assert n - len(dropped) <= num_ctx
    assert dropped.stop < n or not dropped
    assert (len(dropped) == 0) == (n <= num_ctx)
    # Nothing more could have stayed: the group before the rest would not fit.
    if dropped:
        previous = next((begin for begin, end in groups if end == dropped.stop), dropped.stop - 1)
        assert previous < keep or n - previous + keep > num_ctx


@pytest.mark.parametrize(
    ("gives", "needed", "expected"),
    [
        ({}, 0, []),
        ({}, 1, None),
        ({3: 5, 1: 5, 2: 5}, 0, []),
        ({3: 5, 1: 5, 2: 5}, 5, [3]),  # who was used least recently
        ({3: 5, 1: 5, 2: 5}, 6, [3, 1]),
        ({3: 5, 1: 5, 2: 5}, 16, None),  # nobody leaves for nothing
        ({3: 0, 1: 5, 2: 0}, 5, [1]),
        ({3: 1, 1: 1, 2: 9}, 9, [2]),
        ({3: 4, 1: 1, 2: 6}, 10, [3, 2]),
    ],
)
def test_eviction(gives: dict[int, int], needed: int, expected: list[int] | None) -> None:
    """Each candidate that leaves gives so many cells."""
    assert plan_eviction(list(gives), lambda gone: sum(gives[key] for key in gone) >= needed) == expected


def test_eviction_of_two_that_help_together_only() -> None:
    """As where both share a cell with whoever needs room."""
    assert plan_eviction([1, 2, 3, 4], lambda gone: {2, 4} <= set(gone)) == [2, 4]


@given(st.lists(st.integers(0, 6), max_size=9), st.integers(0, 30))
def test_nobody_leaves_for_nothing(gives: list[int], needed: int) -> None:
    asked: list[int] = []

    def fits(gone: Collection[int]) -> bool:
        asked.append(len(gone))
        return sum(gives[key] for key in gone) >= needed

    found = plan_eviction(range(len(gives)), fits)
    assert (found is None) == (sum(gives) < needed)
    if found:
        assert found == sorted(found)
        given = sum(gives[key] for key in found)
        assert given >= needed
        assert all(given - gives[key] < needed for key in found)
        assert sum(gives[: max(found)]) < needed, "no later one than needed"
    assert len(asked) <= 6 + len(gives)
