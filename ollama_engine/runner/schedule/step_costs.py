"""StepCosts: the seconds that a step of so many rows takes, as measured on this machine with this model."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["StepCosts"]

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


class StepCosts:
    """Seconds by rows. What was not measured lies on the line between its neighbours."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._costs: list[float] = []
        self._noted: list[int] = []
        """When each was measured last, counted in measurements."""
        self._n = 0
        self._level = 1.0

    def note(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if seconds <= 0:
            return
        self._n += 1
        if self._n % FORGET == 0:
            self._forget()
        i = bisect_left(self._rows, rows)
        if i == len(self._rows) or self._rows[i] != rows:
            expected = self.seconds(rows)
            seconds = seconds if expected is None else min(seconds, OUTLIER * expected)
            self._rows.insert(i, rows)
            self._costs.insert(i, seconds / self._level)
            self._noted.insert(i, self._n)
            return
        self._noted[i] = self._n
        ratio = min(seconds / (self._costs[i] * self._level), OUTLIER)
        self._level *= ratio**DRIFT
        self._costs[i] *= ratio**CHANGE

    def is_recent(self, rows: int) -> bool:
        """Whether a step of so many rows was measured lately."""
        i = bisect_left(self._rows, rows)
        return i < len(self._rows) and self._rows[i] == rows and self._n - self._noted[i] < RECENT

    def _forget(self) -> None:
        for i in reversed(range(len(self._rows))):
            if self._n - self._noted[i] >= FORGET:
                del self._rows[i], self._costs[i], self._noted[i]

    def seconds(self, rows: int) -> float | None:
        """What a step of so many rows is expected to take; None before the first measurement."""
        if not self._rows:
            return None
        i = bisect_left(self._rows, rows)
        if i < len(self._rows) and self._rows[i] == rows:
            return self._level * self._costs[i]
        low = self._costs[i - 1] if i else self._costs[0]
        if i == 0 or i == len(self._rows):
            near = self._rows[max(0, i - 1)]
            one = self._costs[0] / (1 + ROW * (self._rows[0] - 1))
            return self._level * max(low + ROW * one * (rows - near), one)
        left, right = self._rows[i - 1], self._rows[i]
        return self._level * (low + (self._costs[i] - low) * (rows - left) / (right - left))
