"""Locks between threads and processes that write the same folder, each a file in it."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["held", "try_lock", "unlock"]

LONGEST_WAIT = 60.0
"""Seconds. Locks are held for milliseconds, but by a process that is stopped."""
POLL_SECONDS = 0.005


@contextmanager
def held(path: Path, longest: float = LONGEST_WAIT) -> Iterator[None]:
    """Wait until this lock is ours, and hold it. Short work only: what takes long polls `try_lock`.

    The system frees the lock of a process that ends. Not reentrant: a thread that holds it waits for itself.
    Raises TimeoutError where it is not free for `longest` seconds.
    """
    until = time.monotonic() + longest
    while (handle := try_lock(path)) is None:
        if time.monotonic() > until:
            told = f"another process has held this lock for {longest:g} s; is it stopped?"
            raise TimeoutError(errno.ETIMEDOUT, told, str(path))
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        unlock(path, handle)


def try_lock(path: Path) -> int | None:
    """Take this lock if it is free: a handle for `unlock`, or None."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_of(path, handle):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder removed the file meanwhile; the next one has a new file


def unlock(path: Path, handle: int) -> None:
    """Give a lock back. Its file is removed first, so that locks leave nothing behind."""
    path.unlink(missing_ok=True)
    os.close(handle)


def _is_file_of(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
