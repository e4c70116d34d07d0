"""NgramIndex: where the end of a text came before, found as LZ77 finds matches: by a table of its last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["LONGEST", "SHORTEST", "Match", "NgramIndex"]

SHORTEST = 2
"""Tokens that a match has at least."""
LONGEST = 32
"""Tokens of a match that are compared; a longer one counts as this long."""
TRIED = 16
"""Most places that are compared, the latest first."""
MANY = 256
"""From so many tokens on, numpy's sort is quicker than a loop."""


class Match(NamedTuple):
    """A place where the same tokens came: `index.tokens[at]` is the token that followed them."""

    at: int
    length: int


class NgramIndex:
    """Tokens, and for each pair of neighbours where it came last. 0.1 kB a token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._latest: dict[int, int] = {}
        """The last place of each pair: the index of its second token."""
        self._before: list[int] = []
        """For each place, the one before it of the same pair; -1: none."""

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, of 0 to 2^31 - 1."""
        if len(tokens) > MANY:
            self._extend_by_sorting(tokens)
            return
        for token in tokens:
            place = len(self.tokens)
            self.tokens.append(token)
            pair = _pair(self.tokens[place - 1], token) if place else -1
            self._before.append(self._latest.get(pair, -1))
            self._latest[pair] = place

    def _extend_by_sorting(self, tokens: Sequence[int]) -> None:
        begin = len(self.tokens)
        self.extend(tokens[:1])
        self.tokens += tokens[1:]
        text = np.array(self.tokens[begin:], dtype=np.int64)
        pairs = (text[:-1] << 32) | text[1:]
        order = np.argsort(pairs, kind="stable")
        again = pairs[order[1:]] == pairs[order[:-1]]
        before = np.full(len(pairs), -1, dtype=np.int64)
        before[order[1:][again]] = order[:-1][again] + begin + 1
        for i in order[np.concatenate([[True], ~again])].tolist():
            before[i] = self._latest.get(int(pairs[i]), -1)
        self._before += before.tolist()
        self._latest.update(zip(pairs.tolist(), range(begin + 1, len(self.tokens)), strict=True))

    def find(self, end: Sequence[int], *, within: bool) -> Match | None:
        """The longest match of the last tokens of a text, of equal ones the latest.

        `within`: the text is this index's, whose own end is no match.
        """
        if len(end) < SHORTEST:
            return None
        best: Match | None = None
        place = self._latest.get(_pair(end[-2], end[-1]), -1)
        if within and place == len(self.tokens) - 1:
            place = self._before[place]
        for _ in range(TRIED):
            if place < 0:
                break
            length = self._common(end, place)
            if place + 1 < len(self.tokens) and (best is None or length > best.length):
                best = Match(place + 1, length)
                if length == LONGEST:
                    break
            place = self._before[place]
        return best

    def _common(self, end: Sequence[int], place: int) -> int:
        """How many of the last tokens of `end` stand before and at this place."""
        most = min(len(end), place + 1, LONGEST)
        length = SHORTEST
        while length < most and self.tokens[place - length] == end[-1 - length]:
            length += 1
        return length


def _pair(first: int, second: int) -> int:
    return first << 32 | second
