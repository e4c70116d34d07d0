"""Tasks: work of callers that the engine thread does while no step is in flight."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.request.channel import wait_at
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix
from ollama_engine.runner.schedule.sequence import ScheduledRequest

__all__ = ["End", "EngineTask", "Release", "Update"]

Result = TypeVar("Result")


class EngineTask(Generic[Result]):
    """Does `work` on the engine thread; `result` waits, and returns its result or raises its error."""

    def __init__(self, work: Callable[[EngineCore], Result]) -> None:
        self._work: Callable[[EngineCore], Result] | None = work
        self._results: SimpleQueue[Result] = SimpleQueue()
        self._errors: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self, core: EngineCore) -> None:
        """Called by the engine's thread."""
        # Drop `work`: the thread keeps its last task, which must not keep a session alive.
        work, self._work = self._work, None
        assert work is not None
        try:
            self._results.put(work(core))
        except BaseException as error:
            self._errors.put(error)
        else:
            self._errors.put(None)

    def fail(self, error: BaseException) -> None:
        """Called by the engine thread when it ends before the task has run."""
        self._work = None
        self._errors.put(error)

    def result(self) -> Result:
        """Waits for the result of `work`. Raises its exception, or ClosedError."""
        error = wait_at(self._errors)
        if error is not None:
            raise error
        return self._results.get()


class Update:
    """Changes a request; no caller waits for it. An exception in it is a fault of the engine."""

    def __init__(self, change: Callable[[EngineCore], object]) -> None:
        self._change = change

    def run(self, core: EngineCore) -> None:
        """Called by the engine's thread."""
        self._change(core)

    def fail(self, error: BaseException) -> None:
        """Does nothing: the request has ended with the engine."""


class End(EngineTask[None]):
    """Cancels a request that was submitted before, and waits until it is gone."""

    def __init__(self, sequence: ScheduledRequest) -> None:
        super().__init__(lambda core: None)
        self._sequence = sequence
        sequence.channel.cancelled = True

    def run(self, core: EngineCore) -> None:
        """Runs twice: the step after the first run ends the request, at the second run it is gone."""
        # A request without a key was never submitted.
        if self._sequence.ended or self._sequence.key < 0:
            super().run(core)
        else:
            core.add_task(self)


class Release(weakref.ref[object]):
    """Releases what a session pins in the cache, after `close` or when the session is collected. No caller waits.

    A weak reference to `session`: when it is collected, `ask` is called with this object. `ask` is not Python code,
    because an interrupt in a Python finaliser would be swallowed, and the session's cells would stay pinned.
    """

    _pinned: PinnedPrefix

    @classmethod
    def of(cls, session: object, pinned: PinnedPrefix, ask: Callable[[Release], None]) -> Release:
        """The task that releases `pinned` for `session`."""
        made = cls(session, ask)
        made._pinned = pinned
        return made

    def run(self, core: EngineCore) -> None:
        """Called by the engine thread; a second call does nothing."""
        core.cache_manager.pinned.release(self._pinned)

    def fail(self, error: BaseException) -> None:
        """Does nothing: the cache is gone, and everything pinned with it."""
