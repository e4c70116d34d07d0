"""EngineCall: what a caller asks of the engine, from its arguments to its value.

    hand_in ──> requests ──> engine ──> events ──> take ──> value
       feed ────────┘

A thread waits for a call with `wait`, a task of asyncio with `coming`; whatever interrupts them cancels all requests of
the call. Kinds of calls differ in what they hand in, and in what they make of the events.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from ollama_engine.runner.request.channel import (
    CancelFlag,
    Event,
    RequestChannel,
    arun_or_cancel,
    run_or_cancel,
    wait_at,
)
from ollama_engine.runner.request.results import Chunk, Result

__all__ = ["EngineCall"]

Value = TypeVar("Value")

NumberedEvent = tuple[int, Event]
"""An event, and the number of its request in the call."""


class _Member:
    """The mailbox of one request: its events go to where those of the whole call come together."""

    def __init__(self, number: int, put: Callable[[NumberedEvent], None]) -> None:
        self._number = number
        self._put = put

    def put(self, event: Event) -> None:
        """Called from the engine's thread."""
        self._put((self._number, event))


class EngineCall(ABC, Generic[Value]):
    """One call, for one caller: `wait` or `coming` is called once. Dropping it cancels its requests."""

    def __init__(self) -> None:
        self.cancel = CancelFlag()
        """Cancels all requests of the call."""
        self._channels: list[RequestChannel] = []
        self._put: Callable[[NumberedEvent], None] | None = None

    # -- kinds of calls say --------------------------------------------------------------------------------------------

    @property
    def takes_long(self) -> bool:
        """Whether no event loop should wait for `hand_in`: long texts, images, a new format."""
        return False

    @property
    def feeds_long(self) -> bool:
        """Whether no event loop should wait for `feed`."""
        return False

    @abstractmethod
    def hand_in(self) -> None:
        """Make the requests, each with a `channel` of its own, and submit them: all, or none where one is refused.

        Raises errors about the caller's arguments, and as `EngineThread.submit` does.
        """

    def feed(self) -> None:
        """Give the requests what they still lack, until they have ended. Errors end them, and are events."""

    def take(self, number: int, event: Chunk | Result) -> None:
        """Keep what `value` needs of an event of request `number`."""

    @abstractmethod
    def value(self) -> Value:
        """The result for the caller, once all requests have ended well."""

    def channel(self) -> RequestChannel:
        """The channel of one more request."""
        assert self._put is not None, "requests are made by `hand_in`"
        channel = RequestChannel(_Member(len(self._channels), self._put), self.cancel)
        channel.watch(self)
        self._channels.append(channel)
        return channel

    # -- callers -------------------------------------------------------------------------------------------------------

    def wait(self) -> Value:
        """Hand it in, and wait for its value. Raises what `hand_in` raises, and what ended a request early."""
        events: SimpleQueue[NumberedEvent] = SimpleQueue()
        self._begin(events.put)

        def until_it_ends() -> Value:
            self.hand_in()
            self.feed()
            missing = len(self._channels)
            while missing:
                missing -= self._is_over(*wait_at(events))
            return self.value()

        return run_or_cancel(self.cancel, until_it_ends)

    async def coming(self) -> Value:
        """`wait` for asyncio; cancelling the task that awaits it cancels the call. The event loop never waits."""
        import asyncio  # noqa: PLC0415 (a program without it starts sooner)

        from ollama_engine.runner.request.astream import AsyncMailbox  # noqa: PLC0415 (asyncio)

        events: AsyncMailbox[NumberedEvent] = AsyncMailbox()
        self._begin(events.put)

        async def until_it_ends() -> Value:
            if self.takes_long:
                await asyncio.to_thread(self.hand_in)
            else:
                self.hand_in()
            if self.feeds_long:
                # A thread of its own: it waits for the engine, and asyncio's are few.
                threading.Thread(target=self.feed, name="ollama_engine call", daemon=True).start()
            else:
                self.feed()
            missing = len(self._channels)
            while missing:
                missing -= self._is_over(*await events.get())
            return self.value()

        return await arun_or_cancel(self.cancel, until_it_ends)

    def _begin(self, put: Callable[[NumberedEvent], None]) -> None:
        assert self._put is None, "a call is waited for once"
        self._put = put

    def _is_over(self, number: int, event: Event) -> bool:
        """Take an event; whether its request has ended well. Raises what ended it early."""
        if isinstance(event, BaseException):
            try:
                raise event
            finally:
                del event  # which would hold this frame, and by it what the caller has
        self.take(number, event)
        return self._channels[number].note(event)
