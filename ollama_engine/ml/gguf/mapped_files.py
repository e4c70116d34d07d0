"""MappedFiles: a watch on the files that weights are read from, so that no process changes them during a step.

The system ends a process that reads a mapped page whose place in the file is gone (SIGBUS), and whatever another
process writes into the file is what is read. So while steps are computed, read leases (fcntl(2), F_SETLEASE) hold the
files, where the system grants them. Opening such a file for writing, or truncating it, waits until the lease is given
back: the watch looks for that between two steps, and raises. So a writer waits for a step or two; 45 seconds, after
which Linux takes the lease, only for a process that is stopped or a step that takes as long. While nothing is computed
there is no lease, and no writer waits; afterwards, the size and the time of the last change tell whether the file is as
it was.

A lease needs Linux, a file system that knows leases, and a file that belongs to this process's user (or CAP_LEASE), and
that no process has open for writing. Without one the watch looks at size and time only, which is too late for a file
that is truncated in the middle of a step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
import time
from collections.abc import Callable

from ollama_engine.errors import ClosedError

try:
    import fcntl
except ImportError:  # Windows, which lets no process truncate a mapped file
    fcntl = None  # type: ignore[assignment]

__all__ = ["MappedFiles"]

LOOK_SECONDS = 0.002
"""Least time between two looks: one takes a microsecond or two for each file."""
SET_OWNER = 15
"""F_SETOWN_EX of Linux, which Python's module lacks."""
OF_THREAD = 0
"""F_OWNER_TID: the signal goes to one thread."""

HAS_LEASES = hasattr(fcntl, "F_SETLEASE")


class MappedFiles:
    """The mapped files of one model. `before_step` and `rest` are called by the thread that computes its steps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._files: list[_MappedFile] = []
        self._thread = 0
        self._resting = True
        self._looked_at = 0.0

    def add(self, path: str, descriptor: int) -> None:
        """Watch an open file from now on. The descriptor is copied."""
        self._files.append(_MappedFile(path, descriptor))

    def before_step(self) -> None:
        """Raise ClosedError where a file is not as it was, or a process waits to change it."""
        if not self._files:
            return
        now = self._clock()
        if self._resting:
            self._keep_signals_away()
            self._resting = False
            for file in self._files:
                file.hold(self._thread)
        elif now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        for file in self._files:
            file.check()

    def rest(self) -> None:
        """No step is in flight, and none follows: give leases back."""
        if not self._resting:
            self._resting = True
            for file in self._files:
                file.let_go()

    def close(self) -> None:
        """The files are mapped no more. Safe to call twice."""
        files, self._files = self._files, []
        for file in files:
            file.close()

    def _keep_signals_away(self) -> None:
        """The system says by SIGIO that a process waits for a lease. It goes to this thread only, which blocks it."""
        if self._thread != threading.get_native_id() and HAS_LEASES:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
        self._thread = threading.get_native_id()


class _MappedFile:
    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = os.dup(descriptor)
        self._facts = self._look()
        self._held = False
        self._pid = os.getpid()

    def hold(self, thread: int) -> None:
        """Ask for a lease, whose signal goes to a thread that blocks it."""
        if not HAS_LEASES:
            return
        try:
            # First the owner of the signal: without one it is the process, which the signal ends.
            fcntl.fcntl(self._descriptor, SET_OWNER, struct.pack("ii", OF_THREAD, thread))
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            self._held = True
        except OSError:  # no such file system, another user's file, or a process has it open for writing
            self._held = False

    def let_go(self) -> None:
        """Give the lease back: who waits for it goes on."""
        if self._held:
            self._held = False
            if self._pid != os.getpid():
                return  # a fork shares the lease, which is its parent's
            with contextlib.suppress(OSError):  # the system took it back
                fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def check(self) -> None:
        """Raise ClosedError where the file has changed, or a process waits to open it for writing."""
        if self._held and fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
            raise self._error("another process opened it for writing")
        if self._look() != self._facts:
            raise self._error("it has changed")

    def close(self) -> None:
        """Give the lease back, and close the file."""
        if self._descriptor >= 0:
            self.let_go()
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns

    def _error(self, what: str) -> ClosedError:
        return ClosedError(
            f"{self._path}: {what} while weights were read from it, and so the Engine closed itself",
            advice=["put new files in the place of old ones", "copy the weights (mmap=False, --no-mmap)"],
        )
