"""How many threads to compute with on a machine that has other work, too. Pure: numbers in, a number out.

ggml's threads wait for each other by spinning, several hundred times a step. While one of them has no CPU, the others
compute nothing: with 8 other processes on 2 CPUs, 2 threads get a thousandth of what one thread gets.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["CHECK", "LONGEST_PAUSE", "ThreadGovernor"]

CHECK = 0.1
"""Seconds between two looks for idle CPUs while fewer threads compute than were asked for."""
LONGEST_PAUSE = 3.2
"""Seconds without another try after several that failed."""
_LONGEST_WITH_IDLE = 4 * CHECK
"""The same where the system says that CPUs are idle."""
_CALM = 0.1
"""Threads may lack so much of one CPU where more of them are tried."""
_IDLE = 0.7
"""A further thread has a CPU where so much of one was idle: the engine's own Python code takes a part."""
_REMEMBERED = 10.0
"""Seconds for which a number of threads that worked is believed to work again."""
_NEVER = float("-inf")


class ThreadGovernor:
    """Chooses how many of `most` threads compute, from how long they waited for a CPU.

    `idle_cpus` tells how many CPUs were idle since it was called last, or None where the system does not say.
    """

    def __init__(self, most: int, idle_cpus: Callable[[], float | None]) -> None:
        self._most = most
        self._idle_cpus = idle_cpus
        self.threads = most
        """How many compute now."""
        self._pause = CHECK
        self._lowered = self._raised = self._looked = self._full = _NEVER

    def begin(self, now: float, waiting: int | None) -> int:
        """The number of threads for the first steps after a pause.

        `waiting`: how many threads of all programs want a CPU now and have none; below 0, as many CPUs are idle; None
        where the system does not say. Two or more means that other programs take all CPUs: then one thread computes,
        unless all did well a moment ago, because the others have a lower priority.
        """
        if waiting is None:
            return self.threads
        if waiting > 1 and now - self._full > _REMEMBERED:
            self._set(1, now)
        elif self.threads < self._most <= self.threads - waiting:
            self._set(self._most, now)
        return self.threads

    def observe(self, now: float, computed: float, waited: float) -> int:
        """The number of threads for the next steps.

        `now`: a clock's seconds. `computed`: seconds of computing since the last call. `waited`: seconds that the
        threads, added up, were ready to run in that time, and had no CPU.
        """
        lacking = waited / computed
        # With n threads of which one is missing a share of the time, the rest is lost to all of them. n - 1 threads
        # that always run are faster where that share is above 1 / n.
        if self.threads > 1 and lacking > 1 / self.threads:
            failed = now - self._raised < 4 * self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE) if failed else CHECK
            self._set(max(1, min(self.threads - 1, int(self.threads - lacking + 0.25))), now)
            self._full = _NEVER
        elif self.threads == self._most:
            self._full = now
        elif lacking <= _CALM and now - max(self._lowered, self._looked) >= CHECK:
            self._try_more(now)
        return self.threads

    def _try_more(self, now: float) -> None:
        """More threads at once where CPUs are idle. Elsewhere one more is tried now and then: priorities may differ."""
        idle = self._idle_cpus()
        self._looked = now
        free = idle is not None and idle >= _IDLE
        if now - self._lowered < (min(self._pause, _LONGEST_WITH_IDLE) if free else self._pause):
            return
        self._set(min(self._most, self.threads + max(1, int((idle or 0) + 1 - _IDLE))), now)

    def _set(self, threads: int, now: float) -> None:
        if threads < self.threads:
            self._lowered = now
            self._idle_cpus()  # the next answer is about the time from now on
        elif threads > self.threads:
            self._raised = now
        self.threads = threads
