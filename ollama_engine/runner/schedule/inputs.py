"""Inputs: what a sequence is made of, in arrays, so that long ones can be cut, compared and copied at no cost.

Groups. An input with `same_batch` = k must be computed in one batch with the k inputs that follow it. Inputs that are
tied to each other in this way, directly or through others, form a group: a half-open range of indices. No batch edge,
truncation, shift or reused prefix may end inside of one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ollama_engine.input import Input, Int32Array

__all__ = ["Group", "Inputs", "ceil_cut", "floor_cut", "groups_of"]

Group = tuple[int, int]
"""Indices [begin, end) of inputs that are computed in one batch, dropped together, and kept together."""


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A run of inputs. What makes two of them the same is the token and the media hash; groups follow from these."""

    tokens: Int32Array
    """[n]"""
    media: tuple[tuple[int, int], ...] = ()
    """(index, media hash) of the inputs that have one, ascending."""
    groups: tuple[Group, ...] = ()
    """Ascending and disjoint; inputs outside of all are free to be computed one by one."""

    @classmethod
    def of(cls, inputs: Sequence[Input]) -> Inputs:
        """The same inputs. Raises ValueError when a group reaches beyond the end."""
        return cls(
            tokens=np.fromiter((one.token for one in inputs), dtype=np.int32, count=len(inputs)),
            media=tuple((i, one.media_hash) for i, one in enumerate(inputs) if one.media_hash is not None),
            groups=groups_of(one.same_batch for one in inputs),
        )

    @classmethod
    def text(cls, tokens: Sequence[int] | Int32Array) -> Inputs:
        """Tokens alone."""
        return cls(np.asarray(tokens, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, begin: int, end: int) -> Inputs:
        """Inputs [begin, end), counted from 0 again; shares the tokens' memory. Raises ValueError within a group."""
        if not 0 <= begin <= end <= len(self):
            raise ValueError(f"a part lies within 0 to {len(self)}, got {begin} to {end}")
        for edge in (begin, end):
            if floor_cut(edge, self.groups) != edge:
                raise ValueError(f"inputs {begin} to {end} cut a group of inputs that belong together at {edge}")
        return Inputs(
            self.tokens[begin:end],
            tuple((i - begin, media) for i, media in self.media if begin <= i < end),
            tuple((first - begin, last - begin) for first, last in self.groups if begin <= first < end),
        )

    def join(self, other: Inputs) -> Inputs:
        """These inputs, then those of `other`."""
        n = len(self)
        return Inputs(
            np.concatenate((self.tokens, other.tokens)),
            self.media + tuple((i + n, media) for i, media in other.media),
            self.groups + tuple((begin + n, end + n) for begin, end in other.groups),
        )

    def without(self, begin: int, end: int) -> Inputs:
        """These inputs, [begin, end) left out. Raises ValueError within a group."""
        return self.part(0, begin).join(self.part(end, len(self)))


def groups_of(same_batch: Iterable[int]) -> tuple[Group, ...]:
    """Groups of inputs from their `same_batch` numbers. Raises ValueError for one below 0 or beyond the end."""
    groups: list[Group] = []
    n = begin = end = 0
    for i, following in enumerate(same_batch):
        n = i + 1
        if following < 0:
            raise ValueError(f"same_batch counts the inputs that follow, got {following} at input {i}")
        if i >= end:
            if end - begin > 1:
                groups.append((begin, end))
            begin = i
        end = max(end, i + 1 + following)
    if end > n:
        raise ValueError(f"the group that begins at input {begin} needs inputs up to {end}, there are {n}")
    if end - begin > 1:
        groups.append((begin, end))
    return tuple(groups)


def floor_cut(at: int, groups: Sequence[Group]) -> int:
    """The last place up to `at` where a cut splits no group."""
    group = _around(at, groups)
    return at if group is None else group[0]


def ceil_cut(at: int, groups: Sequence[Group]) -> int:
    """The first place from `at` on where a cut splits no group."""
    group = _around(at, groups)
    return at if group is None else group[1]


def _around(at: int, groups: Sequence[Group]) -> Group | None:
    """The group that a cut before input `at` would split."""
    if not groups:
        return None
    before = bisect_left(groups, (at,)) - 1
    if before >= 0 and groups[before][1] > at:
        return groups[before]
    return None
