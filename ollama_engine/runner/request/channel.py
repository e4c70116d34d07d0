"""RequestChannel: what a caller and the engine share of one request. Interrupting the caller cancels it.

The engine sends events into a mailbox and never waits for who takes them. The caller cancels by setting a flag.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Awaitable, Callable
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, Protocol, TypeVar

from ollama_engine.runner.request.results import Chunk, Result

__all__ = [
    "LOOK_SECONDS",
    "CancelFlag",
    "Cancellable",
    "Event",
    "Mailbox",
    "RequestChannel",
    "arun_or_cancel",
    "is_last",
    "result_of",
    "run_or_cancel",
    "wait_at",
]

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Event = Chunk | Result | BaseException
"""An event of a request: a chunk, of which the last has a finish reason; the one result; or the error that ended it."""


class Mailbox(Protocol):
    """Where the engine puts what comes out of a request."""

    def put(self, event: Event, /) -> None:
        """Called from the engine's thread; must not wait. If it raises, the request is cancelled and gets no more."""


class Cancellable(Protocol):
    """Something that is cancelled by a plain store."""

    cancelled: bool


class CancelFlag:
    """Cancels all requests of one call at once."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


def run_or_cancel(flag: Cancellable, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`call(*args, **kwargs)`; whatever it raises, cancels `flag` first.

    An interrupt (what a signal handler raises) can come wherever Python calls or returns from C. The store below does
    neither, so one interrupt cannot come between leaving `call` and cancelling. A context manager could not promise
    that: its `__exit__` is a call.
    """
    try:
        return call(*args, **kwargs)
    except BaseException:
        flag.cancelled = True
        raise


async def arun_or_cancel(flag: Cancellable, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """`run_or_cancel` for a coroutine; cancelling the task that awaits it cancels `flag` too."""
    try:
        return await call(*args, **kwargs)
    except BaseException:
        flag.cancelled = True
        raise


LOOK_SECONDS = 1.0
"""How much later than it came an interrupt may be noticed."""


def wait_at(queue: SimpleQueue[T], deadline: float = math.inf) -> T:
    """The queue's next item. Raises Empty once `deadline` (of `time.monotonic`) has passed.

    Python looks for signals before a thread goes to wait, and a signal that comes while it waits wakes it up. One that
    comes in between, while the thread gives up Python's lock, is noticed only when the wait ends. So no wait is long.
    """
    while True:
        left = deadline - time.monotonic()
        try:
            return queue.get(timeout=min(max(0.0, left), LOOK_SECONDS))
        except Empty:
            if not left > LOOK_SECONDS:  # nor where it is no number
                raise


class RequestChannel:
    """Refers to neither side, so that caller and engine can go away in any order.

    `call`: shared by all requests of one call, which it cancels together.
    """

    def __init__(self, mailbox: Mailbox, call: CancelFlag | None = None) -> None:
        self.mailbox = mailbox
        self.cancelled = False
        """Set by a plain store, see `run_or_cancel`; never cleared."""
        self._call = call
        self._gone: list[object] = []
        self._watch: weakref.ref[object] | None = None
        self._broken = False
        self.taken = 0
        """Tokens of the chunks that the caller has taken."""
        self.done = False
        """Whether the caller has taken the last event."""
        self.ended = False
        """Whether the last event has been sent."""

    def watch(self, handle: object) -> None:
        """Cancel the request when `handle` is collected.

        An interrupt in a finaliser is swallowed, with what the finaliser was to do. `list.append` runs no Python code,
        so none comes in between.
        """
        self._watch = weakref.ref(handle, self._gone.append)

    @property
    def unwanted(self) -> bool:
        """Whether it was cancelled, or its handle dropped."""
        return self.cancelled or bool(self._gone) or (self._call is not None and self._call.cancelled)

    def note(self, event: Event) -> bool:
        """The caller has taken an event; whether it was the last one."""
        if isinstance(event, Chunk):
            self.taken += len(event.tokens)
        self.done = is_last(event)
        return self.done

    def send(self, event: Event) -> None:
        """Put it into the mailbox. Called from the engine's thread; raises nothing, for that would end all requests."""
        if self._broken:
            return
        try:
            self.mailbox.put(event)
            # Afterwards: who finds it ended finds the event.
            self.ended = is_last(event)
        except Exception as error:
            log.debug("a mailbox raised %r; its request is cancelled", error)
            self._broken = self.cancelled = True


def is_last(event: Event) -> bool:
    """Whether nothing comes after it."""
    return not isinstance(event, Chunk) or event.finish_reason is not None


def result_of(event: Event) -> Any:
    """The value of the one event of a request without chunks. Raises what ended the request instead."""
    if isinstance(event, Result):
        return event.value
    assert isinstance(event, BaseException), "such a request has no chunks"
    try:
        raise event
    finally:
        del event  # which would hold this frame, and by it what the caller has
