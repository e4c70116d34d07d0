"""Acceptance: how often a guess was right, by how sure it was: by the match that it comes from, say."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

__all__ = ["Acceptance"]

FORGET = 128
"""Guesses of a level after which older ones count half."""
WEIGHT = 4.0
"""Guesses that what is known of all answers counts for, beside those of one answer."""
BY_MATCH = {
    64 * agreement + length: chance
    for agreement, chances in enumerate((
        (0.15, 0.25, 0.35, 0.4, 0.5, 0.6), (0.25, 0.45, 0.6, 0.7, 0.8, 0.9), (0.3, 0.5, 0.65, 0.85, 0.92, 0.97),
        (0.6, 0.6, 0.75, 0.85, 0.92, 0.97), (0.8, 0.9, 0.93, 0.95, 0.98, 0.99),
    ))
    for length, chance in zip((2, 3, 4, 6, 8, 16), chances, strict=True)
}  # fmt: skip
"""Chances of a guess by lookup before anything is known: by 64 times how far earlier places agree about it
(`ngram_index.agreements`) plus the length of the match. As measured in code, JSON, quotations and chats by SmolLM2."""


class Acceptance:
    """Counts of one answer, or of all. The chance of a guess lies between what `others` know and its own counts.

    `expected`: chances before anything is known, by the least sureness that they are for.
    """

    def __init__(self, others: Acceptance | None = None, expected: Mapping[int, float] = BY_MATCH) -> None:
        self._others = others
        self.levels: list[int] = list(expected) if others is None else others.levels
        """The least sureness of each level, rising."""
        self._expected: list[float] = list(expected.values()) if others is None else others._expected
        self._right = [0.0] * len(self.levels)
        self._tried = [0.0] * len(self.levels)

    def _level(self, sureness: int) -> int:
        return max(0, bisect_right(self.levels, sureness) - 1)

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

    def chances(self) -> list[float]:
        """The chance of each level."""
        before = self._expected if self._others is None else self._others.chances()
        counts = zip(self._right, self._tried, before, strict=True)
        return [(right + WEIGHT * expected) / (tried + WEIGHT) for right, tried, expected in counts]
