"""Acceptance: how often a guess was right, by the length of its match."""

from __future__ import annotations

from ollama_engine.runner.speculative.ngram_index import LONGEST, SHORTEST

__all__ = ["Acceptance"]

FORGET = 128
"""Guesses of a length after which older ones count half."""
WEIGHT = 4.0
"""Guesses that what is known of all answers counts for, beside those of one answer."""
_EXPECTED = {2: 0.25, 3: 0.4, 4: 0.5, 5: 0.55, 6: 0.6, 8: 0.7, 12: 0.8, 16: 0.85, 24: 0.9, 32: 0.95}
"""Chances before anything is known, by the shortest length that they are for."""


class Acceptance:
    """Counts of one answer, or of all. The chance of a guess lies between what `others` know and its own counts."""

    def __init__(self, others: Acceptance | None = None) -> None:
        self._others = others
        self._right = [0.0] * (LONGEST + 1)
        self._tried = [0.0] * (LONGEST + 1)

    def count(self, length: int, *, right: bool) -> None:
        """A guess behind a match of this length was right, or not."""
        level = _LEVEL[length]
        self._tried[level] += 1
        self._right[level] += right
        if self._tried[level] > FORGET:
            self._tried[level] /= 2
            self._right[level] /= 2
        if self._others is not None:
            self._others.count(length, right=right)

    def chance(self, length: int) -> float:
        """The chance that a guess behind a match of this length is right."""
        level = _LEVEL[length]
        before = _EXPECTED[level] if self._others is None else self._others.chance(length)
        return (self._right[level] + WEIGHT * before) / (self._tried[level] + WEIGHT)


_LEVEL = [max((level for level in _EXPECTED if level <= length), default=SHORTEST) for length in range(LONGEST + 1)]
