"""Waiting with a limit: where the awaited thing does not come, a test fails soon and says what it waited for."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAIT_SECONDS = 30.0
"""For what takes at most a few seconds: a process that starts, a thread that ends. Less than pytest's own limit."""

POLL_SECONDS = 0.01


def eventually(true: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until it is true. Raises AssertionError."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s for {_text(true)}"
        time.sleep(POLL_SECONDS)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt: a shell has programs in its background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def join(*threads: threading.Thread, seconds: float = WAIT_SECONDS) -> None:
    """Wait until all have ended. Raises AssertionError, which says where each of the others is."""
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    left = [thread for thread in threads if thread.is_alive()]
    assert not left, "\n".join([f"waited {seconds:g} s for the end of", *map(_place, left)])


def ended(call: Callable[[], object]) -> BaseException | None:
    """What a call raised, made in a thread that must not hang."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    join(thread)
    return raised[0]


def status_of(child: int, seconds: float = WAIT_SECONDS) -> int:
    """The status of a forked process, as `os.waitpid` gives it. Kills it and raises AssertionError where it hangs."""
    end = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid != 0:
            return status
        if time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"waited {seconds:g} s for the end of the forked process {child}")
        time.sleep(POLL_SECONDS)


def _text(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):  # of a program without a file, or written in C
        return repr(condition)


def _place(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return f"{thread.name}, which is at\n{''.join(traceback.format_stack(frame)) if frame else 'an unknown place'}"
