"""How many threads to compute with on a machine that has other work, too. Pure: numbers in, a number out.

ggml's threads wait for each other by spinning, several hundred times a step. While one of them has no CPU, the others
compute nothing: with 8 other processes on 2 CPUs, 2 threads get a hundredth of what one thread gets.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["CHECK", "LONGEST_PAUSE", "ThreadGovernor"]

CHECK = 0.1
"""Seconds between two looks for idle CPUs while fewer threads compute than were asked for."""
LONGEST_PAUSE = 3.2
"""Seconds without another try after several that failed."""
_CALM = 0.1
"""Threads may lack so much of one CPU where more of them are tried."""
_IDLE = 0.7
"""A further thread is tried where so much of a CPU was idle: the engine's own Python code takes a part of one."""


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
        self._raised = float("-inf")
        self._next_try = 0.0

    def observe(self, now: float, computed: float, waited: float) -> int:
        """The number of threads for the next steps.

        `now`: a clock's seconds. `computed`: seconds of computing since the last call. `waited`: seconds that the
        threads, added up, were ready to run in that time, and had no CPU.
        """
        lacking = waited / computed
        # With n threads of which one is missing a share of the time, the rest is lost to all of them. n - 1 threads
        # that always run are faster where that share is above 1 / n.
        if self.threads > 1 and lacking > 1 / self.threads:
            self._lower(now, lacking)
        elif self.threads < self._most and now >= self._next_try:
            self._try_more(now, lacking)
        return self.threads

    def _lower(self, now: float, lacking: float) -> None:
        failed = now - self._raised < 4 * self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if failed else CHECK
        self.threads = max(1, min(self.threads - 1, int(self.threads - lacking + 0.25)))
        self._next_try = now + self._pause
        self._idle_cpus()  # the next answer is about the time from now on

    def _try_more(self, now: float, lacking: float) -> None:
        idle = self._idle_cpus()
        self._next_try = now + CHECK
        if lacking > _CALM or (idle is not None and idle < _IDLE):
            return
        self.threads = min(self._most, self.threads + max(1, int((idle or 0) + 1 - _IDLE)))
        self._raised = now
