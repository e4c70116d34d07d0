"""Request: the caller's end of one generation, for threads."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from ollama_engine.errors import ClosedError, DeadlineError
from ollama_engine.runner.request.channel import Event, RequestChannel, is_last, run_or_cancel, wait_at
from ollama_engine.runner.request.results import Chunk, Completion, collect

if TYPE_CHECKING:
    from ollama_engine.runner.request.inputs import Inputs

__all__ = ["Request"]


class _Events:
    """The events of one request, for any number of threads; each goes to one. All are kept: an interrupt loses none."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self.n_taken = 0
        self._taking = threading.Lock()
        # One for each event that waits. With one too many, a thread looks in vain; with one too few it waits for ever.
        self._bell: SimpleQueue[None] = SimpleQueue()

    def put(self, event: Event) -> None:
        """Called from the engine's thread."""
        self.all.append(event)
        self._bell.put(None)

    def over(self) -> bool:
        """Whether the last one has been taken."""
        return bool(self.n_taken) and is_last(self.all[self.n_taken - 1])

    def take(self, deadline: float | None) -> Event | None:
        """The next one; None after the last, or when the deadline (of `time.monotonic`) has passed."""
        if self.over():
            return None
        try:
            while True:
                wait_at(self._bell, math.inf if deadline is None else deadline)
                with self._taking:
                    if self.over():
                        self._bell.put(None)  # for other threads that wait
                        return None
                    if self.n_taken < len(self.all):
                        self.n_taken += 1
                        if self.over():
                            self._bell.put(None)
                        return self.all[self.n_taken - 1]
        except Empty:
            return None
        except BaseException:
            self._bell.put(None)  # the thread that was interrupted may have heard it
            raise


class Request(Iterator[Chunk]):
    """A generation that was handed to an engine: iterate over its chunks, or wait for its `result`.

    `cancel` ends it at the engine's next step. Dropping a request does not; an interrupt (KeyboardInterrupt, or what
    another signal handler raises) in `next` or `result` does. Several threads may take chunks from one request; each
    chunk goes to one. `engine` is kept alive until the request is gone.
    """

    def __init__(self, engine: object = None, inputs: Inputs | None = None, *, watched: bool = False) -> None:
        self.engine = engine
        self._events = _Events()
        self.channel = RequestChannel(self._events)
        if watched:  # dropping this one does cancel it
            self.channel.watch(self)
        self._pid = os.getpid()
        self.inputs = inputs
        """The prompt, as it was given; not for callers."""
        self.generation: Any = None
        """The engine's side of the request, a Generation (runner/schedule/sequence.py); not for callers."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Token ids of the prompt, as it was given."""
        return () if self.inputs is None else tuple(self.inputs.tokens.tolist())

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the chunks that have been taken so far."""
        taken = self._events.all[: self._events.n_taken]
        return tuple(token for chunk in taken if isinstance(chunk, Chunk) for token in chunk.tokens)

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.channel.cancelled

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not: `result` returns at once then."""
        return self.channel.ended

    def cancel(self) -> None:
        """End it at the engine's next step, if it has not ended; `next` and `result` raise ClosedError then.

        Takes no lock, for finalisers call it too. Safe to call twice.
        """
        self.channel.cancelled = True

    def __next__(self) -> Chunk:
        event = self._take(None)
        if isinstance(event, Chunk):
            return event
        if event is None:
            raise StopIteration
        assert isinstance(event, BaseException), "a generation has chunks"
        try:
            raise event
        finally:
            del event  # which would hold this frame, and by it the engine

    def result(self, timeout: float | None = None) -> Completion:
        """The whole completion, chunks that were taken before included; waits for its end.

        Raises the error that ended the request early, and DeadlineError (a TimeoutError) when it takes longer than
        `timeout` seconds; the request goes on then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._take(deadline) is not None:
            pass
        last = self._events.all[-1]
        if isinstance(last, Chunk):
            return collect(cast(list[Chunk], self._events.all))
        assert isinstance(last, BaseException), "a generation has chunks"
        try:
            raise last
        finally:
            del last

    def __repr__(self) -> str:
        state = "ended" if self.done else "cancelled" if self.channel.unwanted else "under way"
        return f"Request({len(self.prompt)} prompt tokens, {len(self.tokens)} answer tokens taken, {state})"

    def _take(self, deadline: float | None) -> Event | None:
        """The next event; None after the last. Raises DeadlineError."""
        if self._pid != os.getpid() and not self._events.over():
            raise ClosedError("this request was started before the process forked; its answer goes to the parent")
        event = run_or_cancel(self.channel, self._events.take, deadline)
        if event is not None:
            self.channel.note(event)
        elif not self._events.over():
            raise DeadlineError("the request has not ended within the timeout of this call; it goes on")
        return event
