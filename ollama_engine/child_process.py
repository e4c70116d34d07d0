"""Parent: a process that a program started does not outlive it, and says how it ended."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable

__all__ = ["end_with_parent", "how_it_ended"]

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a child gets when its parent ends."""


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
