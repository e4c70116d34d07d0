"""Inputs and groups: cuts land where no group is split, parts and joins keep identity and groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.input import Input
from ollama_engine.runner.schedule.inputs import Inputs, ceil_cut, floor_cut, groups_of


@pytest.mark.parametrize(
    ("same_batch", "groups"),
    [
        ([], ()),
        ([0, 0, 0], ()),
        ([2, 0, 0, 0], ((0, 3),)),
        ([0, 1, 0, 1, 0], ((1, 3), (3, 5))),
        ([1, 2, 0, 0, 0], ((0, 4),)),  # the second reaches further than the first
        ([0, 3, 1, 0, 0, 0], ((1, 5),)),  # one within another
    ],
)
def test_groups(same_batch: list[int], groups: tuple[tuple[int, int], ...]) -> None:
    assert groups_of(same_batch) == groups


@pytest.mark.parametrize(
    ("same_batch", "message"), [([0, 1], "needs inputs up to 3, there are 2"), ([-1], "got -1 at input 0")]
)
def test_groups_refused(same_batch: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        groups_of(same_batch)


@given(st.lists(st.integers(0, 4), max_size=20))
def test_cuts_against_the_definition(numbers: list[int]) -> None:
    same_batch = [min(k, len(numbers) - 1 - i) for i, k in enumerate(numbers)]
    groups = groups_of(same_batch)
    # A cut before input c is whole when no input before it needs one from c on.
    whole = [c for c in range(len(numbers) + 1) if all(i + same_batch[i] < c for i in range(c))]
    for at in range(len(numbers) + 1):
        assert floor_cut(at, groups) == max(c for c in whole if c <= at)
        assert ceil_cut(at, groups) == min(c for c in whole if c >= at)


IMAGE = [Input(9, media_hash=77, same_batch=2), Input(0), Input(0)]
SOME = Inputs.of([Input(1), *IMAGE, Input(2), Input(3, media_hash=5)])


def test_of() -> None:
    assert SOME.tokens.tolist() == [1, 9, 0, 0, 2, 3]
    assert SOME.tokens.dtype == np.int32
    assert SOME.media == ((1, 77), (5, 5))
    assert SOME.groups == ((1, 4),)
    assert len(SOME) == 6


@pytest.mark.parametrize(
    ("begin", "end", "tokens", "media", "groups"),
    [
        (0, 6, [1, 9, 0, 0, 2, 3], ((1, 77), (5, 5)), ((1, 4),)),
        (1, 5, [9, 0, 0, 2], ((0, 77),), ((0, 3),)),
        (4, 6, [2, 3], ((1, 5),), ()),
        (0, 1, [1], (), ()),
        (4, 4, [], (), ()),
    ],
)
def test_part(begin: int, end: int, tokens: list[int], media: object, groups: object) -> None:
    entry = SOME.part(begin, end)
    assert (entry.tokens.tolist(), entry.media, entry.groups) == (tokens, media, groups)


@pytest.mark.parametrize(("begin", "end"), [(2, 6), (0, 3), (-1, 2), (3, 1), (0, 7)])
def test_part_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"cut a group|lies within"):
        SOME.part(begin, end)


def test_join_and_without() -> None:
    joined = Inputs.text([8]).join(SOME)
    assert joined.tokens.tolist() == [8, 1, 9, 0, 0, 2, 3]
    assert (joined.media, joined.groups) == (((2, 77), (6, 5)), ((2, 5),))
    rest = joined.without(1, 5)
    assert (rest.tokens.tolist(), rest.media, rest.groups) == ([8, 2, 3], ((2, 5),), ())
