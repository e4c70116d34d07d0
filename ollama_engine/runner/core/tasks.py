"""Tasks: what callers have the engine's thread do for them while nothing computes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.prefix.pinned_prefix import PinnedPrefix
from ollama_engine.runner.schedule.sequence import Sequence

__all__ = ["End", "EngineTask", "Release", "Update"]

Result = TypeVar("Result")


class EngineTask(Generic[Result]):
    """Does `work`; `result` waits for what it returns, or raises what it raised."""

    def __init__(self, work: Callable[[EngineCore], Result]) -> None:
        self._work: Callable[[EngineCore], Result] | None = work
        self._results: SimpleQueue[Result] = SimpleQueue()
        self._errors: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self, core: EngineCore) -> None:
        """Called by the engine's thread."""
        # The thread remembers what it did last; it must not keep a session alive by it.
        work, self._work = self._work, None
        assert work is not None
        try:
            self._results.put(work(core))
        except BaseException as error:
            self._errors.put(error)
        else:
            self._errors.put(None)

    def fail(self, error: BaseException) -> None:
        """Called by the engine's thread when it ends first."""
        self._work = None
        self._errors.put(error)

    def result(self) -> Result:
        """What `work` returned. Raises what it raised, or ClosedError."""
        error = self._errors.get()
        if error is not None:
            raise error
        return self._results.get()


class Update:
    """Changes something of a request without anybody waiting for it. An error in it is a fault of the engine."""

    def __init__(self, change: Callable[[EngineCore], object]) -> None:
        self._change = change

    def run(self, core: EngineCore) -> None:
        """Called by the engine's thread."""
        self._change(core)

    def fail(self, error: BaseException) -> None:
        """Nothing to tell: the request has ended with the engine."""


class End(EngineTask[None]):
    """Waits until a request that was handed in before is gone; cancels it."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(lambda core: None)
        self._sequence = sequence
        sequence.channel.cancelled = True

    def run(self, core: EngineCore) -> None:
        """The step in which this runs ends it; the next time it is gone."""
        # One without a key was never handed in.
        if self._sequence.ended or self._sequence.key < 0:
            super().run(core)
        else:
            core.add_task(self)


class Release(weakref.ref[object]):
    """A session lets go of the cache: it is closed, or nobody has it any more. Nobody waits.

    When `session` goes, `ask`, which is no Python code, is called with this. An interrupt in a finaliser would be
    swallowed, and what the session holds would stay.
    """

    _pinned: PinnedPrefix

    @classmethod
    def of(cls, session: object, pinned: PinnedPrefix, ask: Callable[[Release], None]) -> Release:
        """What lets go of `pinned` for `session`."""
        made = cls(session, ask)
        made._pinned = pinned
        return made

    def run(self, core: EngineCore) -> None:
        """Called by the engine's thread; once more does no harm."""
        core.cache_manager.release(self._pinned)

    def fail(self, error: BaseException) -> None:
        """The cache is gone, and all that was held with it."""
