"""Writes a file that appears under its name only when it is whole.

It grows under a temporary name in the same folder, is flushed to the disk, and then takes its name. An existing file
is not replaced unless the caller says so, and then only a regular file that may be written. A failure, Ctrl-C included,
leaves what was there before.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ollama_engine import size_texts
from ollama_engine.errors import Option, Phrase, TargetExistsError

__all__ = ["FileSizes", "about", "check_target", "flush_folder", "write_new_file"]

MARGIN = 1 << 20
"""Bytes of disk space to leave free."""


@dataclass(frozen=True)
class FileSizes:
    """Bytes of the files that were read, and of the one that was written."""

    before: int
    after: int

    @classmethod
    def of(cls, sources: Iterable[str], target: str | os.PathLike[str]) -> FileSizes:
        """Sizes of files, by their paths; a source that is named twice counts once."""
        return cls(sum(os.path.getsize(path) for path in set(sources)), os.path.getsize(target))


def check_target(path: str | os.PathLike[str], size: int, *, overwrite: bool = False) -> None:
    """Refuse a path that cannot be written, and a disk with less than `size` bytes left.

    Raises IsADirectoryError for a folder, and TargetExistsError for what else exists, unless `overwrite`; then
    PermissionError for a file that is read-only, and OSError (EINVAL) for what is no regular file. Raises
    FileNotFoundError and NotADirectoryError for a folder that does not exist, and OSError (ENOSPC).
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file in it", str(target))
    if os.path.lexists(target):
        if not overwrite:
            ways: list[Phrase] = ["remove it first", "choose another name", ("set ", Option("overwrite"))]
            raise TargetExistsError(f"{target}: exists already", advice=ways)
        if target.exists():  # not so a link to a file that is still to be made
            _check_replaceable(target)
    try:
        free = shutil.disk_usage(_home(target)).free
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    if free < size + MARGIN:
        sizes = map(size_texts.size, (size, free, size + MARGIN - free))
        what = "no room: the file takes {}, and {} are free; {} more must be".format(*sizes)
        raise OSError(errno.ENOSPC, what, str(target))


def _check_replaceable(target: Path) -> None:
    mode = target.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is no regular file, and is not replaced", str(target))
    # By the mode, since the superuser may write everything.
    if not mode & 0o222 or not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "is read-only, and is not replaced", str(target))


def _home(target: Path) -> Path:
    """The folder of a file; for a link, that of its target."""
    return Path(os.path.realpath(target)).parent


def write_new_file(
    path: str | os.PathLike[str], size: int, write: Callable[[BinaryIO], object], *, overwrite: bool = False,
    private: bool = False,
) -> None:  # fmt: skip
    """Make a file of about `size` bytes, which `write` writes; it gets its name when that returns without an error.

    `private`: only its owner may read it. Where `path` is a link to a file that may be replaced, that file is.
    Raises what `check_target` raises, also when the name was taken meanwhile.
    """
    check_target(path, size, overwrite=overwrite)
    target = Path(os.path.realpath(path) if overwrite else path)
    # Chosen before the file is made, so that an interrupt anywhere leaves no file behind.
    temporary = target.with_name(f".{os.urandom(8).hex()}.part")
    try:
        with about(path), open(temporary, "xb", opener=_private if private else None) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        (_replace if overwrite else _take_name)(temporary, target)
    except BaseException as error:
        with suppress(OSError):  # such as one that has its name already
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == str(temporary):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    flush_folder(target.parent)


@contextmanager
def about(path: str | os.PathLike[str]) -> Iterator[None]:
    """An OSError without a file's name, as a full disk raises it, is about this file or folder."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _replace(temporary: Path, target: Path) -> None:
    if os.path.lexists(target):
        _check_replaceable(target)
    os.replace(temporary, target)


def _take_name(temporary: Path, target: Path) -> None:
    """A hard link refuses a name that is taken, which rename() does not; not every file system has them."""
    try:
        os.link(temporary, target)
    except OSError:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "was created by someone else meanwhile", str(target)) from None
        os.rename(temporary, target)
    else:
        os.unlink(temporary)


def flush_folder(folder: Path) -> None:
    """Names of files reach the disk; folders cannot be flushed everywhere."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
