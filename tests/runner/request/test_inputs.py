"""Inputs and groups: cuts land where no group is split, parts and joins keep identity and groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.input import Input, MediaItem
from ollama_engine.runner.request.inputs import Inputs, MediaSpan, ceil_cut, floor_cut, groups_of
from tests.support.media import item


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


PICTURE, LOOSE = item(77), item(5, n_inputs=2)
SOME = Inputs.of([Input(1), Input(9, PICTURE, 2), Input(0), Input(0), Input(2), Input(3, LOOSE), Input(0)])


def test_of() -> None:
    assert SOME.tokens.tolist() == [1, 9, 0, 0, 2, 3, 0]
    assert SOME.tokens.dtype == np.int32
    assert SOME.media == (MediaSpan(1, 4, PICTURE), MediaSpan(5, 7, LOOSE))
    assert SOME.groups == ((1, 4),)
    assert len(SOME) == 7
    assert SOME.largest_group == 3
    assert Inputs.text([1, 2]).largest_group == 0
    assert SOME.text_tokens() == [1, 2]


@pytest.mark.parametrize(
    "inputs", [[Input(1), Input(9, item(7)), Input(0)], [Input(9, item(7)), Input(0), Input(8, item(6, 1))]]
)
def test_items_that_do_not_fit_are_refused(inputs: list[Input]) -> None:
    with pytest.raises(ValueError, match="media item at input"):
        Inputs.of(inputs)


@pytest.mark.parametrize(
    ("begin", "end", "tokens", "media", "groups"),
    [
        (0, 7, [1, 9, 0, 0, 2, 3, 0], ((1, 4, 0, 77), (5, 7, 0, 5)), ((1, 4),)),
        (1, 5, [9, 0, 0, 2], ((0, 3, 0, 77),), ((0, 3),)),
        (4, 6, [2, 3], ((1, 2, 0, 5),), ()),  # an item that no group protects is cut
        (6, 7, [0], ((0, 1, 1, 5),), ()),
        (0, 1, [1], (), ()),
        (4, 4, [], (), ()),
    ],
)
def test_part(begin: int, end: int, tokens: list[int], media: object, groups: object) -> None:
    part = SOME.part(begin, end)
    assert (part.tokens.tolist(), identities(part), part.groups) == (tokens, media, groups)


def identities(inputs: Inputs) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(span.identity) for span in inputs.media)


@pytest.mark.parametrize(("begin", "end"), [(2, 6), (0, 3), (-1, 2), (3, 1), (0, 8)])
def test_part_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"cut a group|lies within"):
        SOME.part(begin, end)


def test_join_and_without() -> None:
    joined = Inputs.text([8]).join(SOME)
    assert joined.tokens.tolist() == [8, 1, 9, 0, 0, 2, 3, 0]
    assert (identities(joined), joined.groups) == (((2, 5, 0, 77), (6, 8, 0, 5)), ((2, 5),))
    rest = joined.without(1, 5)
    assert (rest.tokens.tolist(), identities(rest), rest.groups) == ([8, 2, 3, 0], ((2, 4, 0, 5),), ())
    assert SOME.with_tokens([4]).tokens.tolist() == [1, 9, 0, 0, 2, 3, 0, 4]


# -- positions of several axes -----------------------------------------------------------------------------------------


def grid(content: int, rows: int, columns: int) -> MediaItem:
    """An image of Qwen2-VL: all at one time, then row and column; text goes on behind the longer side."""
    places = [(0, row, column) for row in range(rows) for column in range(columns)]
    positions = np.array(places, dtype=np.int32).T
    return item(content, rows * columns, positions=positions, n_positions=max(rows, columns))


def walked(inputs: list[Input]) -> list[tuple[int, int, int]]:
    """Positions as the definition has them, input by input."""
    found: list[tuple[int, int, int]] = []
    at = i = 0
    while i < len(inputs):
        media = inputs[i].media
        if media is None:
            found.append((at, at, at))
            at, i = at + 1, i + 1
            continue
        own = media.positions if media.positions is not None else np.tile(np.arange(media.n_inputs), (3, 1))
        found += [tuple(int(x) + at for x in column) for column in own.T]  # type: ignore[misc]
        at += media.n_inputs if media.n_positions is None else media.n_positions
        i += media.n_inputs
    return found


@given(st.lists(st.sampled_from(["text", "wide", "tall", "plain"]), max_size=8), st.data())
def test_axis_positions_against_the_definition(kinds: list[str], data: st.DataObject) -> None:
    made = {"wide": grid(1, 2, 4), "tall": grid(2, 3, 1), "plain": item(3, 2)}
    inputs: list[Input] = []
    for kind in kinds:
        inputs += [Input(1)] if kind == "text" else [Input(9, made[kind]), *[Input(0)] * (made[kind].n_inputs - 1)]
    given_inputs, expected = Inputs.of(inputs), walked([*inputs, Input(1), Input(1)])
    begin = data.draw(st.integers(0, len(inputs)))
    n = data.draw(st.integers(0, len(inputs) + 2 - begin))
    assert given_inputs.axis_positions(begin, n, 3).T.tolist() == [list(p) for p in expected[begin : begin + n]]


def test_positions_after_a_cut_never_fall() -> None:
    """What is left of an image that was cut has the positions of a smaller one, and text goes on behind them."""
    picture = grid(7, 4, 3)
    inputs = Inputs.of([Input(1), Input(1), Input(9, picture), *[Input(0)] * 11, Input(1), Input(1)])
    for begin in range(2, 14):
        for end in range(begin, 15):
            left = inputs.without(begin, end)
            found = left.axis_positions(0, len(left) + 1, 3)
            text = [i for i in range(len(left) + 1) if not any(s.begin <= i < s.end for s in left.media)]
            assert (np.diff(found[:, text]) > 0).all()
            assert (found[0] == found[1]).all() or left.media
            assert found.min() == 0
            assert found[:, -1].max() == found.max()
