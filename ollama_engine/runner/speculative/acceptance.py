"""Acceptance: how often a guess was right, by how sure it was: by the length of its match, say."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

__all__ = ["Acceptance"]

FORGET = 128
"""Guesses of a level after which older ones count half."""
WEIGHT = 4.0
"""Guesses that what is known of all answers counts for, beside those of one answer."""
BY_LENGTH = {2: 0.25, 3: 0.4, 4: 0.5, 5: 0.55, 6: 0.6, 8: 0.7, 12: 0.8, 16: 0.85, 24: 0.9, 32: 0.95}
"""Chances before anything is known, by the shortest match that they are for."""


class Acceptance:
    """Counts of one answer, or of all. The chance of a guess lies between what `others` know and its own counts.

    `expected`: chances before anything is known, by the least sureness that they are for.
    """

    def __init__(self, others: Acceptance | None = None, expected: Mapping[int, float] = BY_LENGTH) -> None:
        self._others = others
        self._levels: list[int] = list(expected) if others is None else others._levels
        self._expected: list[float] = list(expected.values()) if others is None else others._expected
        self._right = [0.0] * len(self._levels)
        self._tried = [0.0] * len(self._levels)

    def _level(self, sureness: int) -> int:
        return max(0, bisect_right(self._levels, sureness) - 1)

    def count(self, sureness: int, *, right: bool) -> None:
        """A guess that was so sure was right, or not."""
        level = self._level(sureness)
        self._tried[level] += 1
        self._right[level] += right
        if self._tried[level] > FORGET:
            self._tried[level] /= 2
            self._right[level] /= 2
        if self._others is not None:
            self._others.count(sureness, right=right)

    def chance(self, sureness: int) -> float:
        """The chance that a guess that is so sure is right."""
        level = self._level(sureness)
        before = self._expected[level] if self._others is None else self._others.chance(sureness)
        return (self._right[level] + WEIGHT * before) / (self._tried[level] + WEIGHT)
