"""ModelMemory: gives a loaded model's memory back to the system, and takes it again."""

from __future__ import annotations

import errno
import logging
import os
import time
from contextlib import ExitStack, suppress
from typing import BinaryIO

from ollama_engine.errors import EngineError, NoMemoryError
from ollama_engine.ml.weights.kept_pages import KeptPages
from ollama_engine.runner.load.loading import Loaded

__all__ = ["ModelMemory", "not_written"]

log = logging.getLogger(__name__)


class ModelMemory:
    """For the engine's thread, while nothing computes.

    Weights are read from their mapped file again. What the cache and all else held is kept in a file.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._kept: KeptPages | None = None
        self._file: BinaryIO | None = None

    @property
    def given_back(self) -> bool:
        """Whether the system has it now. Any thread may ask."""
        return self._kept is not None

    def give_back(self, file: BinaryIO) -> None:
        """Write what is held into an empty file, which is closed when it is not needed. Safe to call twice.

        Raises OSError, and DeviceError for a model on other devices than the CPU. Where a part of the memory is gone by
        then, it is taken again, as by `take`; where that fails, all of it counts as given back.
        """
        begin = time.perf_counter()
        with ExitStack() as undo:
            undo.callback(file.close)
            if self._kept is not None:
                return
            try:
                kept = KeptPages(self._loaded.backend, file.fileno())
            except OSError as error:
                if isinstance(error, EngineError):  # of other devices
                    raise
                raise not_written(error, os.path.dirname(file.name)) from error
            undo.pop_all()
        self._kept, self._file = kept, file
        try:
            if self._loaded.weights.experts is not None:
                self._loaded.weights.experts.drop()
            kept.drop()
        except BaseException:  # memory that is locked, say
            with suppress(OSError, NoMemoryError):  # who needs it next meets them again; the first error is told
                self.take()
            raise
        log.info("%s sleeps: its memory was given back in %.2f s", self._loaded.path, time.perf_counter() - begin)

    def take(self) -> None:
        """Take it again. Raises NoMemoryError, with nothing changed, and OSError, after which nothing can compute."""
        if self._kept is None or self._file is None:
            return
        begin = time.perf_counter()
        self._kept.load()
        self._loaded.weights.touch()
        if self._loaded.draft is not None:
            self._loaded.draft.weights.touch()
        self._file.close()
        self._kept = self._file = None
        log.info("%s woke up in %.2f s", self._loaded.path, time.perf_counter() - begin)

    def close(self) -> None:
        """Free the model, awake or not."""
        if self._file is not None:
            self._file.close()
        self._loaded.close()


def not_written(error: OSError, folder: str | os.PathLike[str]) -> OSError:
    """The error with its folder, and advice."""
    if error.errno == errno.ENOSYS:
        return OSError(errno.ENOSYS, "only Linux can have the memory of an engine meanwhile; close it instead")
    room = ", in a quarter of what is free" if error.errno == errno.ENOSPC else ""
    advice = f"what an engine holds that sleeps cannot be kept there{room}; name another folder"
    return OSError(error.errno, f"{error.strerror}: {advice}", os.fspath(folder))
