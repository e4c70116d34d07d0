"""BlockFolder: the files of blocks, bounded in bytes. Any number of processes may share one.

    FOLDER/MODEL/model.json      what it is of, for people
    FOLDER/MODEL/hits            a byte for each prompt that went on from blocks
    FOLDER/MODEL/ab/cd...ef.0    a block: its key in hexadecimal, and the kind of layers

MODEL stands for the root key, so models do not mix. The time of a file's last change is when it was last read or
written; beyond the bound, the files that were not used for longest are removed, of whichever model. A file that is
gone, or damaged, is one that was never stored.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from ollama_engine.file_lock import try_lock, unlock
from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.prefix_store.block_file import read_block, write_block
from ollama_engine.runner.prefix_store.block_format import BlockFormatError
from ollama_engine.runner.prefix_store.folder_contents import ABOUT, HITS, LOCK, remove_unused
from ollama_engine.runner.prefix_store.step_budget import StepBudget

__all__ = ["BlockFolder"]

log = logging.getLogger(__name__)

LOOK_EVERY = 1 / 64
"""Share of the bound that this process writes before it looks what others have written."""
MARGIN = 64 << 20
"""Bytes of disk space to leave free."""
SAY_EVERY = 3600.0
"""Seconds between two lines in the log about a disk that takes nothing."""


class BlockFolder:
    """Blocks of one model, in a folder of at most `most_bytes` for all models. Any thread may call it."""

    def __init__(self, folder: Path, root: bytes, most_bytes: int, about: str = "") -> None:
        self._folder = folder
        self._mine = folder / root.hex()[:32]
        self._most_bytes = most_bytes
        self._about = about
        self._lock = Lock()
        self._written = most_bytes
        """Bytes since the last look; as if all were new at the start, so that the first write looks."""
        self._full_at = float("-inf")

    def path(self, key: bytes, kind: int) -> Path:
        """Where a block of a kind lies."""
        name = key.hex()
        return self._mine / name[:2] / f"{name[2:]}.{kind}"

    def has(self, key: bytes, kind: int) -> bool:
        """Whether there is a file for it."""
        return os.path.exists(self.path(key, kind))  # False, too, where it is not allowed to look

    def read(self, key: bytes, kind: int, row_bytes: Sequence[int]) -> SavedRows | None:
        """The rows of a block; None where it is not there, or damaged: such a file is removed."""
        path = self.path(key, kind)
        try:
            rows = read_block(path, key, kind, row_bytes)
            os.utime(path)
        except BlockFormatError as error:
            log.warning("a stored prefix is removed, because %s", error)
            with suppress(OSError):
                path.unlink()
            return None
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("a stored prefix cannot be read: %s", error)
            return None
        return rows

    def count_hit(self) -> None:
        """Blocks were read for one more prompt. Processes append at the same time, without a lock."""
        with suppress(OSError):
            file = os.open(self._mine / HITS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(file, "ab") as hits:
                hits.write(b"\n")

    def write(self, key: bytes, kind: int, saved: SavedRows, budget: StepBudget | None = None) -> bool:
        """Write a block's rows; False where they cannot be written, and why the log says once.

        Beside steps of `budget` it computes for a bounded time; None: nothing else computes.
        """
        path, budget = self.path(key, kind), budget or StepBudget()
        try:
            with suppress(FileNotFoundError):
                if shutil.disk_usage(self._folder).free < MARGIN:
                    raise OSError("less than 64 MB are free on its disk")
            self._make_folder(path.parent)
            n = write_block(path, key, kind, saved, budget)
            self._bound(n, budget.pause)
        except OSError as error:
            if time.monotonic() - self._full_at > SAY_EVERY:
                self._full_at = time.monotonic()
                log.warning("prefixes cannot be stored in %s: %s", self._folder, error)
            return False
        return True

    def _make_folder(self, folder: Path) -> None:
        if folder.exists():
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = self._mine / ABOUT
        if not about.exists():
            os.chmod(self._mine, 0o700)
            with open(os.open(about, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                json.dump({"model": self._about}, file)

    def _bound(self, nbytes: int, pause: Callable[[], None]) -> None:
        with self._lock:
            self._written += nbytes
            if self._written < self._most_bytes * LOOK_EVERY:
                return
            self._written = 0
        lock = self._folder / LOCK
        if (handle := try_lock(lock)) is None:
            return  # another process looks, which pauses beside its steps: this one looks again later
        try:
            remove_unused(self._folder, self._most_bytes, pause)
        finally:
            unlock(lock, handle)
