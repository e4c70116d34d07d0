"""How fast blocks are copied, in the average of the latest copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

__all__ = ["SharedSpeed", "Speed"]


class Speed:
    """Bytes a second, in the average of the latest copies."""

    def __init__(self) -> None:
        self._bytes_per_second: float | None = None

    def note(self, nbytes: int, seconds: float) -> None:
        """So many bytes were copied."""
        if nbytes:
            speed, before = nbytes / max(seconds, 1e-6), self._bytes_per_second
            self._bytes_per_second = speed if before is None else 0.8 * before + 0.2 * speed

    def seconds(self, nbytes: int) -> float:
        """How long copying takes; 0 while that is not known."""
        return nbytes / self._bytes_per_second if self._bytes_per_second is not None else 0.0


class SharedSpeed(Speed):
    """The speed of copies that several threads make side by side: their bytes, over the time in which any was made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._clock = clock
        self._lock = Lock()
        self._running = self._nbytes = 0
        self._began = 0.0

    def begin(self) -> None:
        """A copy begins."""
        with self._lock:
            if self._running == 0:
                self._began, self._nbytes = self._clock(), 0
            self._running += 1

    def end(self, nbytes: int) -> None:
        """A copy has ended, of so many bytes; 0 where it failed."""
        with self._lock:
            self._running -= 1
            self._nbytes += nbytes
            if self._running == 0:
                self.note(self._nbytes, self._clock() - self._began)
