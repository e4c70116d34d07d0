"""StepBudget: how long the store's writer may compute beside one step."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["StepBudget"]

STEP_SECONDS = 0.0003
"""CPU time beside one step. The system may give a thread of a lower priority the CPU until the next tick, for 4 ms."""
POLL_SECONDS = 0.005
"""The thread looks so often whether a step has begun: so the engine's thread need not wake it."""
LONGEST_WAIT = 1.0
"""Seconds. Beside a step that takes longer, the thread may compute once more."""


class StepBudget:
    """The engine's thread says when steps begin and end; one other thread calls `pause` between pieces of its work."""

    def __init__(
        self, cpu_time: Callable[[], float] = time.thread_time, sleep: Callable[[float], object] = time.sleep
    ) -> None:  # fmt: skip
        self._cpu_time = cpu_time
        self._sleep = sleep
        self._steps = 0
        """Steps that have begun; 0 while none computes."""
        self._seen = 0
        self._held = False
        self._spent_at = 0.0
        """CPU time of the other thread at which it has nothing left of the step that it has seen."""

    def hold(self) -> None:
        """The engine's thread copies: the other one waits until the step behind that begins."""
        self._held = True

    def next_step(self) -> None:
        """Another step begins."""
        self._steps += 1
        self._held = False

    def no_steps(self) -> None:
        """Nothing computes any more."""
        self._steps = 0
        self._held = False

    def pause(self) -> None:
        """Wait for the next step where this thread has computed for long enough beside this one."""
        waited = 0.0
        while self._held or (self._steps and self._steps == self._seen and self._cpu_time() >= self._spent_at):
            if waited >= LONGEST_WAIT:
                self._seen = 0
                break
            self._sleep(POLL_SECONDS)
            waited += POLL_SECONDS
        if self._steps != self._seen:
            self._seen, self._spent_at = self._steps, self._cpu_time() + STEP_SECONDS
