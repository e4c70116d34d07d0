"""How many threads to compute with on a machine that has other work, too. Pure: numbers in, a number out.

ggml's threads wait for each other by spinning, several hundred times a step. While one of them has no CPU, the others
compute nothing: with 8 other processes on 2 CPUs, 2 threads get a thousandth of what one thread gets.
"""

from __future__ import annotations

from collections.abc import Callable

from ollama_engine.ml.threads.machine_load import CpuUse

__all__ = ["CHECK", "LONGEST_PAUSE", "ThreadGovernor"]

CHECK = 0.1
"""Seconds with fewer threads before a probe looks for free CPUs."""
LONGEST_PAUSE = 1.6
"""Seconds without another probe after several that found none."""
_CALM = 0.15
"""A thread has a CPU for itself where it lacks it for less than this share of the time."""
_IDLE = 0.7
"""So much of a CPU was idle: a probe is made soon. The engine's own Python code takes a part of one."""
_OTHERS = 0.4
"""Where other programs use less than so much of a CPU, it is this process's own Python code that threads wait for."""
_READABLE = 0.05
_RECENT = 0.5
"""Seconds that a look at the use of the CPUs covers, at least and at most."""
_REMEMBERED = 10.0
"""Seconds for which a number of threads that worked is believed to work again."""
_NEVER = float("-inf")


class ThreadGovernor:
    """Chooses how many of `most` threads compute, from how long they waited for a CPU.

    `cpu_use` tells who used the CPUs since it was called last, or None where the system does not say.
    """

    def __init__(self, most: int, cpu_use: Callable[[], CpuUse | None]) -> None:
        self._most = most
        self._cpu_use = cpu_use
        self.threads = most
        """How many compute now."""
        self.probe = 0
        """How many CPUs a probe is to try now, while as many threads fewer compute."""
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
        self._look(now)
        if waiting > 1 and now - self._full > _REMEMBERED:
            self._set(1, now)
        elif self.threads < self._most <= self.threads - waiting:
            self._set(self._most, now)
        return self.threads

    def observe(self, now: float, computed: float, waited: float, spare: float | None = None) -> int:
        """The number of threads for the next steps.

        `now`: a clock's seconds. `computed`: seconds of computing since the last call. `waited`: seconds that the
        threads, added up, were ready to run in that time, and had no CPU. `spare`: the share of the time that the
        threads of a probe lacked a CPU; None where no probe has ended. Sets `probe`.
        """
        lacking = waited / computed
        probed, self.probe = self.probe, 0
        # With n threads of which one is missing a share of the time, the rest is lost to all of them. n - 1 threads
        # that always run are faster where that share is above 1 / n.
        if self.threads > 1 and lacking > 1 / self.threads:
            self._lower(now, lacking)
        elif self.threads == self._most:
            self._full = now
            if now - self._looked > _RECENT:
                self._look(now)
        elif probed and spare is None:
            self.probe = probed  # it still runs
        elif probed:
            self._try_more(now, probed if max(lacking, spare or 0.0) <= _CALM else 0)
        elif lacking <= _CALM and now - max(self._lowered, self._looked) >= CHECK:
            self._wish(now)
        return self.threads

    def _look(self, now: float) -> CpuUse | None:
        self._looked = now
        return self._cpu_use()

    def _lower(self, now: float, lacking: float) -> None:
        if now - self._looked < _READABLE:
            return
        use = self._look(now)
        if use is not None and use.others < _OTHERS:
            return
        failed = now - self._raised < 4 * self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if failed else CHECK
        self._set(max(1, min(self.threads - 1, int(self.threads - lacking + 0.25))), now)
        self._full = _NEVER

    def _wish(self, now: float) -> None:
        """Want a probe: of all CPUs that were idle, or of one, as other programs may have a lower priority."""
        use = self._look(now)
        idle = 0.0 if use is None else use.idle
        if now - self._lowered >= self._pause or idle >= _IDLE:
            self.probe = min(self._most - self.threads, max(1, int(idle + 1 - _IDLE)))

    def _try_more(self, now: float, more: int) -> None:
        if more:
            self._set(self.threads + more, now)
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._lowered = now

    def _set(self, threads: int, now: float) -> None:
        if threads < self.threads:
            self._lowered = now
        elif threads > self.threads:
            self._raised = now
        self.threads = threads
