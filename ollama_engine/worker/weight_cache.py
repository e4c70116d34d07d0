"""WeightCache: weights that a worker keeps, so that a program need not send them again.

ggml names a file by the hash of its contents, writes it in place, and reads whatever has that name. A process that is
killed leaves half a file, and the next program would compute with it. So each process writes to a folder of its own,
with links to what there is already, and its files are checked before others see them.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

from ollama_engine.ml.workers.workers import weights_hash

__all__ = ["CacheView", "WeightCache"]

PREFIX = ".serving-"
NAME = re.compile("[0-9a-f]{16}")


class WeightCache:
    """A folder of files that ggml's workers can read, several at a time. Raises OSError where it cannot be written."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).resolve()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.folder.glob(f"{PREFIX}*"):
            _remove_unused(left)

    def view(self) -> CacheView:
        """A folder for one process."""
        return CacheView(self)


class CacheView:
    """One process's view of a cache: the weights it finds there, and those that it adds.

    Attributes:
        path: the folder for ggml.
    """

    def __init__(self, cache: WeightCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=cache.folder))
        self._held = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_EX)  # until this process has ended, whatever ends it
        self.refresh()

    def refresh(self) -> None:
        """See what other processes have added, and no more what was deleted.

        Through a link to a file that is gone ggml would write into the cache itself, half a file if it is killed.
        """
        for link in self.path.iterdir():
            if link.is_symlink() and not link.exists():
                link.unlink()
        for file in self._cache.folder.iterdir():
            if NAME.fullmatch(file.name):
                with contextlib.suppress(FileExistsError):
                    (self.path / file.name).symlink_to(file)

    def keep(self) -> None:
        """Take over what the process has written, which it must not do meanwhile; incomplete files are removed."""
        with self._lock:
            for file in self.path.iterdir() if self.path.exists() else ():
                if file.is_symlink():
                    continue
                if NAME.fullmatch(file.name) and _hash_of(file) == int(file.name, 16):
                    file.replace(self._cache.folder / file.name)
                else:
                    file.unlink()

    def close(self) -> None:
        """Take over what the process has written, and remove its folder. Safe to call twice."""
        with contextlib.suppress(OSError):  # the disk is full, or the folder is gone: nothing is kept, and nothing lost
            self.keep()
        with self._lock:
            shutil.rmtree(self.path, ignore_errors=True)
            held, self._held = self._held, -1
        if held >= 0:
            os.close(held)


def _hash_of(file: Path) -> int | None:
    """The hash that ggml names a file by; None for an empty one."""
    with file.open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            return None
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return weights_hash(data)


def _remove_unused(folder: Path) -> None:
    """Remove the folder of a process that has ended with the worker that started it."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:  # another worker's
        pass
    finally:
        os.close(opened)
