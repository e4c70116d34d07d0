"""An engine that sleeps: its memory is the system's until a request needs it."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, BinaryIO

from ollama_engine.errors import ConfigError, DeadlineError, NoMemoryError, Option
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.task import Task
from ollama_engine.runner.core.tasks import EngineTask
from ollama_engine.runner.load.sleeping import ModelMemory

if TYPE_CHECKING:
    from ollama_engine.runner.core.submission import Submission

__all__ = ["SleepMethods", "wake_for_work"]

FOLDER = "/var/tmp"
"""The system's folder for large files that are not kept: on disk, where /tmp may be memory."""


class SleepMethods:
    """Memory that is given back meanwhile; an Engine has all of this."""

    if TYPE_CHECKING:
        _memory: ModelMemory

        def _ready(self) -> Submission:
            """Where requests are handed in; Engine defines it. Raises ClosedError after `close`."""

    def sleep(self, *, timeout: float | None = None, folder: str | os.PathLike[str] = FOLDER) -> None:
        """Give the memory of weights and cache back to the system, once all requests that are in the engine have ended.

        Sessions, forks and cached prefixes stay: the cache's contents are kept in a file without a name in `folder`,
        which is gone when the engine wakes up or its process ends. The next request wakes the engine up, as does
        `wake_up`, and gets the same bits. Embeddings of images stay in memory.

        Only on Linux, and for models on the CPU. Safe to call twice. `timeout`: seconds to wait for requests.

        Raises:
            DeadlineError: requests still ran after `timeout`.
            DeviceError: a part of the model is on a GPU or a worker.
            OSError: the file cannot be written. In these three cases the engine stays awake.
            ClosedError: the Engine is closed, before or meanwhile.
        """
        if timeout is not None and not 0 <= timeout < math.inf:
            raise ConfigError(Option("timeout"), f" is a number of seconds from 0 on, got {timeout!r:.40}")
        thread = self._ready().thread
        thread.check_open()
        task = _Sleep(self._memory, _file_in(folder), timeout)
        thread.do(task)
        task.result()

    def wake_up(self) -> None:
        """Take the memory again, which the next request would do otherwise. Does nothing with an engine that is awake.

        Raises NoMemoryError where others have it now: the engine then sleeps on.
        """
        task = EngineTask[None](lambda core: None)  # any task but one wakes it
        self._ready().thread.do(task)
        task.result()

    @property
    def is_sleeping(self) -> bool:
        """Whether its memory is given back; see `sleep`."""
        self._ready()
        return self._memory.given_back


class _Sleep(EngineTask[None]):
    """Gives the memory back. Runs again at each step until all requests have ended, and prefixes are stored.

    Only the engine's thread closes the file: a caller who is interrupted must not while that writes into it.
    """

    def __init__(self, memory: ModelMemory, file: BinaryIO, timeout: float | None) -> None:
        super().__init__(lambda core: memory.give_back(file))
        self._file = file
        self._until = math.inf if timeout is None else time.monotonic() + timeout

    def run(self, core: EngineCore) -> None:
        if not core.queue and not core.queue.stored.pending:
            core.scrap()
            super().run(core)
        elif time.monotonic() < self._until:
            core.add_task(self)
        else:
            self.fail(DeadlineError("the engine was not put to sleep: it still had requests when the timeout was over"))

    def fail(self, error: BaseException) -> None:
        self._file.close()
        super().fail(error)


def wake_for_work(core: EngineCore, memory: ModelMemory) -> None:
    """Take the memory again where requests, or tasks that callers wait for, need it.

    Where it is short, they end with NoMemoryError, and the engine sleeps on.
    """
    waiting = [task for task in core.tasks if _needs_memory(task)]
    if not core.queue and not waiting:
        return
    try:
        memory.take()
    except NoMemoryError as error:
        core.queue.give_up(error)
        for task in waiting:
            core.tasks.remove(task)
            task.fail(error)


def _needs_memory(task: Task[EngineCore]) -> bool:
    """Sessions that are dropped, say, only change the bookkeeping."""
    return isinstance(task, EngineTask) and not isinstance(task, _Sleep)


def _file_in(folder: str | os.PathLike[str]) -> BinaryIO:
    """A new file, which only its user may read; it has no name any more, and is gone when it is closed."""
    path = os.path.join(folder, f".{os.urandom(8).hex()}.sleep")
    file = open(path, "x+b", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
    os.unlink(path)
    return file
