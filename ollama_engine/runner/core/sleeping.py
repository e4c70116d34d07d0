"""An engine that sleeps: its memory is the system's until a request needs it."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, BinaryIO

from ollama_engine.config import as_float
from ollama_engine.errors import ConfigError, DeadlineError, NoMemoryError, Option
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.request_queue import SWEEP_SECONDS
from ollama_engine.runner.core.tasks import EngineTask
from ollama_engine.runner.load.sleeping import ModelMemory, not_written

if TYPE_CHECKING:
    from ollama_engine.runner.core.submission import Submission

__all__ = ["Sleep", "SleepMethods", "Sleeper"]

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

        Only on Linux, and for models on the CPU. Safe to call twice. `timeout`: seconds to wait for requests. An
        interrupt (Ctrl-C) takes the call back while it waits; `wake_up` of others does not. The file takes a quarter of
        the free disk at most.

        Raises:
            DeadlineError: requests still ran after `timeout`, or the prefix store had not taken all after 10 seconds.
            DeviceError: a part of the model is on a GPU or a worker.
            OSError: the file cannot be written, or would take more. In these three cases the engine stays awake.
            ClosedError: the Engine is closed, before or meanwhile.
        """
        if timeout is not None and not 0 <= as_float(timeout) < math.inf:
            raise ConfigError(Option("timeout"), f" is a number of seconds from 0 on, got {timeout!r:.40}")
        if not os.fspath(folder):
            raise ConfigError(Option("folder"), " is the path of a folder, got an empty one")
        thread = self._ready().thread
        thread.check_open()
        task = Sleep(self._memory, _file_in(folder), timeout)
        try:
            thread.do(task)
            task.result()
        except BaseException:
            task.cancelled = True
            raise

    def wake_up(self) -> None:
        """Take the memory again, which the next request would do otherwise. Does nothing with an engine that is awake.

        Raises NoMemoryError where others have it now: the engine then sleeps on.
        """
        task = EngineTask[None](lambda core: None)  # which wakes it as any other does
        self._ready().thread.do(task)
        task.result()

    @property
    def is_sleeping(self) -> bool:
        """Whether its memory is given back; see `sleep`."""
        self._ready()
        return self._memory.given_back


class Sleep(EngineTask[None]):
    """A call of `sleep`. Only the engine's thread closes its file: a caller who is interrupted must not, meanwhile."""

    def __init__(self, memory: ModelMemory, file: BinaryIO, timeout: float | None) -> None:
        super().__init__(lambda core: memory.give_back(file))
        self._file = file
        self.until = math.inf if timeout is None else time.monotonic() + timeout
        self.cancelled = False
        """Whether the caller was interrupted: the engine then stays awake."""

    def fail(self, error: BaseException) -> None:
        """The engine stays awake."""
        self._file.close()
        super().fail(error)


class Sleeper:
    """Has an engine sleep between two steps, and wakes it up before one. For the engine's thread."""

    def __init__(self, core: EngineCore, memory: ModelMemory | None) -> None:
        self._core = core
        self._memory = memory
        self._calls: list[Sleep] = []
        """Those that wait until nothing needs the memory."""
        self._looked = False
        self._storing_since = math.inf

    def add(self, call: Sleep) -> None:
        """The next look considers it, behind all that was asked for before."""
        self._calls.append(call)
        self._looked = False

    def look_in(self, idle: float | None) -> float | None:
        """Seconds until the engine's thread looks at waiting sleeps again; `idle` where there are none."""
        if not self._calls:
            return idle
        return SWEEP_SECONDS if self._looked else 0.0

    def look(self, store_seconds: float) -> None:
        """Behind a step: give the memory back where nothing needs it. Prefixes get so long to be stored before."""
        if not self._calls:
            return
        self._looked = True
        now = time.monotonic()
        reason, until = self._what_needs_it(now, store_seconds)
        for call in list(self._calls):
            if call.cancelled or (reason and now >= min(until, call.until)):
                call.fail(DeadlineError(f"the engine was not put to sleep, because {reason}"))
            elif not reason:
                self._give_back(call)
            else:
                continue
            self._calls.remove(call)

    def _give_back(self, call: Sleep) -> None:
        assert self._memory is not None
        slept = self._memory.given_back
        call.run(self._core)
        self._core.monitor.metrics.count(sleeps=int(self._memory.given_back and not slept))

    def _what_needs_it(self, now: float, store_seconds: float) -> tuple[str, float]:
        """What the memory is needed for, and until when that is waited for; an empty text where nothing needs it."""
        queue = self._core.queue
        if not queue and queue.stored.pending:
            self._storing_since = min(self._storing_since, now)
            return "prefixes were still to be stored; is the prefix store slow?", self._storing_since + store_seconds
        self._storing_since = math.inf
        needed = queue or self._core.busy
        return "it still had requests when the timeout was over" if needed else "", math.inf

    def wake_for_work(self) -> None:
        """Before a step: take the memory again where requests, or tasks that callers wait for, need it.

        Where it is short, they end with NoMemoryError, and the engine sleeps on.
        """
        if self._memory is None or not self._memory.given_back:
            return
        core = self._core
        waiting = [task for task in core.tasks if isinstance(task, EngineTask)]  # others only change the bookkeeping
        if not core.queue and not waiting:
            return
        begin = time.perf_counter()
        try:
            self._memory.take()
            core.monitor.metrics.count(wake_seconds=time.perf_counter() - begin)
        except NoMemoryError as error:
            core.queue.give_up(error)
            for task in waiting:
                core.tasks.remove(task)
                task.fail(error)

    def fail_all(self, error: BaseException) -> None:
        """For closing the engine."""
        for call in self._calls:
            call.fail(error)
        self._calls.clear()


def _file_in(folder: str | os.PathLike[str]) -> BinaryIO:
    """A new file, which only its user may read; it has no name any more, and is gone when it is closed."""
    path = os.path.join(folder, f".{os.urandom(8).hex()}.sleep")
    try:
        file = open(path, "x+b", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
    except OSError as error:
        raise not_written(error, folder) from error
    os.unlink(path)
    return file
