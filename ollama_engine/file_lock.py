"""Locks between threads and processes that write the same folder, each a file in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["held", "try_lock", "unlock"]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait until this lock is ours, and hold it. Short work only: what takes long polls `try_lock`.

    The system frees the lock of a process that ends. Not reentrant: a thread that holds it waits for itself.
    """
    handle = _taken(path, fcntl.LOCK_EX)
    assert handle is not None, "waited for it"
    try:
        yield
    finally:
        unlock(path, handle)


def try_lock(path: Path) -> int | None:
    """Take this lock if it is free: a handle for `unlock`, or None."""
    return _taken(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(path: Path, handle: int) -> None:
    """Give a lock back. Its file is removed first, so that locks leave nothing behind."""
    path.unlink(missing_ok=True)
    os.close(handle)


def _taken(path: Path, how: int) -> int | None:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, how)
            if _is_file_of(path, handle):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder removed the file meanwhile; the next one has a new file


def _is_file_of(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
