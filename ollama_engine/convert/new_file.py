"""Writes a file that appears under its name only when it is whole.

It grows under a temporary name in the same folder, is flushed to the disk, and then takes its name. An existing file is
never replaced; a failure, Ctrl-C included, leaves nothing under the final name.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

__all__ = ["FileSizes", "check_target", "new_file"]

MARGIN = 1 << 20
"""Bytes of disk space to leave free."""


@dataclass(frozen=True)
class FileSizes:
    """Bytes of the files that were read, and of the one that was written."""

    before: int
    after: int

    @classmethod
    def of(cls, sources: Iterable[str], target: str | os.PathLike[str]) -> FileSizes:
        """Of files by their paths; a source that is named twice counts once."""
        return cls(sum(os.path.getsize(path) for path in set(sources)), os.path.getsize(target))


def check_target(path: str | os.PathLike[str], size: int) -> None:
    """Refuse a file that exists, a folder that does not, and a disk with less than `size` bytes left.

    Raises FileExistsError, FileNotFoundError, NotADirectoryError, or OSError (ENOSPC).
    """
    target = Path(path)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "exists already; remove it first, or choose another name", str(target))
    free = shutil.disk_usage(target.parent).free
    if free < size + MARGIN:
        what = f"no room: the file takes {size / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free"
        raise OSError(errno.ENOSPC, what, str(target))


@contextmanager
def new_file(path: str | os.PathLike[str], size: int) -> Iterator[BinaryIO]:
    """A file of about `size` bytes to write to; it gets its name when the block ends without an error.

    Raises what `check_target` raises, FileExistsError also when the name was taken meanwhile.
    """
    check_target(path, size)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _take_name(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _take_name(temporary: Path, target: Path) -> None:
    """A hard link refuses a name that is taken, which rename() does not; not every file system has them."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, "was created by someone else meanwhile", str(target)) from None
    except OSError:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "was created by someone else meanwhile", str(target)) from None
        os.rename(temporary, target)
    _flush_folder(target.parent)


def _flush_folder(folder: Path) -> None:
    """The name itself reaches the disk; folders cannot be flushed everywhere."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
