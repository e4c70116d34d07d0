"""Child processes that do not outlive the program that started them, and how they ended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

__all__ = ["end_with_parent", "how_it_ended", "start_child"]

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a child gets when the *thread* ends that started it."""


def start_child(
    command: Sequence[str], *, descriptors: Sequence[int] = (), env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a child that calls `end_with_parent`: its standard input is a pipe. Raises OSError.

    Every child is started by one thread, which ends with this process: Linux would kill a child with the thread that
    started it, and the caller's may end before. `descriptors`: what the child inherits, beside its standard streams.
    """
    started: Future[subprocess.Popen[bytes]] = Future()

    def start() -> None:
        try:
            started.set_result(subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, close_fds=True, pass_fds=descriptors,
                env=env,
            ))  # fmt: skip
        except BaseException as error:
            started.set_exception(error)

    _Starter.current().put(start)
    return started.result()


class _Starter:
    """The thread that starts children."""

    _lock = threading.Lock()
    _current: _Starter | None = None

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="starts processes", daemon=True).start()

    @classmethod
    def current(cls) -> SimpleQueue[Callable[[], None]]:
        """The thread's inbox."""
        with cls._lock:
            if cls._current is None:
                cls._current = cls()
            return cls._current._work

    @classmethod
    def forget(cls) -> None:
        """Begin anew in a forked process, which has no thread of its parent, but locks as they were."""
        cls._lock, cls._current = threading.Lock(), None

    def _run(self) -> None:
        while True:
            self._work.get()()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_Starter.forget)


def end_with_parent(stop: Callable[[], None]) -> None:
    """Have the system kill this process when its parent ends (Linux), and call `stop` when standard input ends.

    The parent holds the other end of the pipe, which the system closes however the parent ends. Call it on the main
    thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the server ends its models itself

    def watch() -> None:
        while sys.stdin.buffer.raw.read(4096):  # type: ignore[union-attr]  # a pipe
            pass
        stop()

    threading.Thread(target=watch, name="waits for the server's end", daemon=True).start()


def how_it_ended(code: int | None) -> str:
    """Says how a process ended, from its exit code; None: it does not answer."""
    if code is None:
        return "does not answer"
    if code >= 0:
        return f"has ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system may have run out of memory" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"
