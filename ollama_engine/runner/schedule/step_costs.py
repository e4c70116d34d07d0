"""StepCosts: the seconds that a step of so many rows takes, as measured on this machine with this model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

__all__ = ["StepCosts", "StepPrices"]

ROW = 0.1
"""What one more row is assumed to cost, in steps of one row, where nothing larger was measured."""
DRIFT, CHANGE = 0.2, 0.2
"""How far one measurement moves the estimates of all rows, as contexts grow, and then its own."""
OUTLIER = 2.0
"""A measurement counts as so many times its estimate at most: more, and the machine did something else meanwhile."""
RECENT = 32
"""Measurements for which one is recent."""
FORGET = 2000
"""Measurements after which one that was not repeated is forgotten: nothing else shows that it was too high."""
FORGET_DRAFTED = 128
"""The same of steps with drafts: where they seem dear there are none, and `DraftBudget` bounds what one may lose."""


class StepPrices(NamedTuple):
    """What the next step takes, in seconds."""

    n_rows: int
    """Rows of the step without drafts, each of which gives a token."""
    plain: float
    """That step."""
    drafted: Callable[[int], float]
    """A step of so many rows with drafts."""

    @property
    def row(self) -> float:
        """One more row."""
        return max(0.0, self.drafted(self.n_rows + 4) - self.drafted(self.n_rows)) / 4

    def affordable(self, seconds: float, guess: float = 0.0) -> int:
        """How many guesses, each of which takes `guess` to make, the next step can verify in so many more seconds."""
        first = self.drafted(self.n_rows + 1) - self.plain + guess
        token = self.plain / self.n_rows
        return 0 if seconds < first else 1 + int((seconds - first) / max(self.row + guess, token / 100))


class _Curve:
    """Costs by rows, in units of the level. What was not measured lies on the line between its neighbours."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.costs: list[float] = []
        self.noted: list[int] = []
        """When each was measured last, counted in measurements."""

    def place(self, rows: int) -> tuple[int, bool]:
        """(where it stands, or would stand; whether it is there)."""
        i = bisect_left(self.rows, rows)
        return i, i < len(self.rows) and self.rows[i] == rows

    def at(self, rows: int) -> float | None:
        """The cost of so many rows; None before the first measurement."""
        i, known = self.place(rows)
        if known or not self.rows:
            return self.costs[i] if known else None
        low = self.costs[i - 1] if i else self.costs[0]
        if i == 0 or i == len(self.rows):
            near = self.rows[max(0, i - 1)]
            one = self.costs[0] / (1 + ROW * (self.rows[0] - 1))
            return max(low + ROW * one * (rows - near), one)
        left, right = self.rows[i - 1], self.rows[i]
        return low + (self.costs[i] - low) * (rows - left) / (right - left)

    def forget(self, before: int) -> None:
        """Drop what was measured last before a time."""
        for i in reversed(range(len(self.rows))):
            if self.noted[i] <= before:
                del self.rows[i], self.costs[i], self.noted[i]


class StepCosts:
    """Seconds by rows, of steps without drafts and of steps with drafts.

    These cost more than their rows: they are planned when the tokens before them are there, and not while the device
    computes, and their number of rows is mostly another one than before, so that a graph is built.
    """

    def __init__(self) -> None:
        self._plain, self._drafted = _Curve(), _Curve()
        self._n = 0
        self._level = 1.0
        self._first_drafted: float | None = None
        """How many times what was expected the first step with a draft took, where it took longer."""

    def note(self, rows: int, seconds: float, *, drafted: bool = False) -> None:
        """A step of so many rows took so long."""
        if seconds <= 0:
            return
        self._n += 1
        for curve, after in ((self._plain, FORGET), (self._drafted, FORGET_DRAFTED)):
            if self._n % after == 0:
                curve.forget(self._n - after)
        curve = self._drafted if drafted else self._plain
        i, known = curve.place(rows)
        if not known:
            expected = self.seconds(rows, drafted=drafted)
            seconds = seconds if expected is None else min(seconds, OUTLIER * expected)
            if drafted and not curve.rows and expected is not None and seconds > expected:
                first, self._first_drafted = self._first_drafted, seconds / expected
                if first is None:
                    return  # noise makes a step longer, and one such would end drafts: the shorter of two counts
                seconds = min(seconds, first * expected)
            curve.rows.insert(i, rows)
            curve.costs.insert(i, seconds / self._level)
            curve.noted.insert(i, self._n)
            return
        curve.noted[i] = self._n
        ratio = min(seconds / (curve.costs[i] * self._level), OUTLIER)
        self._level *= ratio**DRIFT
        curve.costs[i] *= ratio**CHANGE

    def is_recent(self, rows: int) -> bool:
        """Whether a step of so many rows, without drafts, was measured lately."""
        i, known = self._plain.place(rows)
        return known and self._n - self._plain.noted[i] < RECENT

    def seconds(self, rows: int, *, drafted: bool = False) -> float | None:
        """What a step of so many rows is expected to take; None before the first measurement.

        Before the first step with drafts, one is expected to take what its rows take without.
        """
        cost = self._drafted.at(rows) if drafted else None
        cost = self._plain.at(rows) if cost is None else cost
        return None if cost is None else self._level * cost

    def prices(self, rows: int, forced: int = 0) -> StepPrices | None:
        """What the next step takes, which has so many rows without drafts; None where that was not measured lately.

        `forced`: rows that it has besides, of tokens that a constraint forced.
        """
        plain = self.seconds(rows + forced) if self.is_recent(rows) else None
        if plain is None:
            return None
        # Asked several times for the same number of rows before one step.
        return StepPrices(rows, plain, cache(lambda n: self.seconds(n + forced, drafted=True) or plain))
