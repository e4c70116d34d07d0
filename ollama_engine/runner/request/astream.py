"""AsyncStream: chunks of one request for asyncio. The event loop never waits for the engine, nor the engine for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar, cast

from ollama_engine.async_tasks import running_loop
from ollama_engine.closing import AsyncClosing
from ollama_engine.errors import ClosedError
from ollama_engine.runner.request.channel import Event, RequestChannel
from ollama_engine.runner.request.results import Chunk, Completion, collect, merged

__all__ = ["AsyncMailbox", "AsyncStream"]

Item = TypeVar("Item")


class AsyncMailbox(Generic[Item]):
    """Items cross from the engine's thread to the event loop that runs where this is made.

    Many items that come at once cost one wake-up.
    """

    def __init__(self) -> None:
        self._loop = running_loop()
        self.items: deque[Item] = deque()
        self.arrived = asyncio.Event()
        self._called = False

    def put(self, item: Item) -> None:
        """Called from the engine's thread. Raises RuntimeError when the event loop is closed: no task will read it."""
        self.items.append(item)
        if self._called and not self._loop.is_closed():
            return
        self._called = True
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # Before anybody looks, so that what comes meanwhile calls again.
        self._called = False
        self.arrived.set()

    async def get(self) -> Item:
        """The next item, for one task."""
        while not self.items:
            self.arrived.clear()
            await self.arrived.wait()
        return self.items.popleft()


class AsyncStream(AsyncIterator[Chunk], AsyncClosing):
    """The chunks of one request, as they come: `async for`. For the event loop that was running when it was made.

    `aclose`, leaving `async with`, or dropping the iterator cancels the request at its next step; so does cancelling
    the task that waits for a chunk. `anext` raises the error that ended the request early.
    """

    def __init__(self, engine: object) -> None:
        self._mailbox: AsyncMailbox[Event] = AsyncMailbox()
        self.channel = RequestChannel(self._mailbox)
        self.channel.watch(self)
        self._engine = engine
        self._ended = False
        self.merges = False
        """Whether chunks that wait are taken as one: who falls behind pays for a chunk, not for each token."""
        self._starting: asyncio.Task[None] | None = None

    def start(self, submit: Callable[[], object], *, in_thread: bool) -> None:
        """Submit the request: at once, or in a thread where that takes long; then `anext` raises what that raises.

        `submit` may not refer to this stream, which could not be dropped meanwhile.
        """
        if in_thread:
            self._starting = asyncio.get_running_loop().create_task(_start(self.channel, submit))
        else:
            submit()

    async def __anext__(self) -> Chunk:
        event = await self._take()
        if event is None:
            raise StopAsyncIteration
        if self.merges and isinstance(event, Chunk):
            event = self._with_waiting(event)
        self._ended = self.channel.note(event)
        if isinstance(event, Chunk):
            return event
        assert isinstance(event, BaseException), "a generation has chunks"
        try:
            raise event
        finally:
            del event  # which would hold this frame, and by it the engine

    async def _take(self) -> Event | None:
        """The next event; None when the stream has ended, here or in another task."""
        events, arrived = self._mailbox.items, self._mailbox.arrived
        try:
            while not self._ended and not events:
                arrived.clear()
                await arrived.wait()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if self._ended:
            return None
        return events.popleft()

    def _with_waiting(self, chunk: Chunk) -> Chunk:
        """The chunk, and those behind it that have come already, as one."""
        events = self._mailbox.items
        more = []
        while events and isinstance(events[0], Chunk):
            more.append(cast(Chunk, events.popleft()))
        return merged([chunk, *more]) if more else chunk

    async def aclose(self) -> None:
        """Cancel the request if it has not ended; there are no further chunks. Safe to call twice."""
        self._ended = True
        self.channel.cancelled = True
        self._mailbox.arrived.set()  # others that wait for a chunk

    async def completion(self) -> Completion:
        """The rest of the answer, as one completion."""
        async with self:
            chunks = [chunk async for chunk in self]
        if not chunks or chunks[-1].finish_reason is None:
            raise ClosedError("the stream has ended, or was closed, before its completion was asked for")
        return collect(chunks)

    def __repr__(self) -> str:
        return f"AsyncStream({'ended' if self._ended else 'open'})"


async def _start(channel: RequestChannel, submit: Callable[[], object]) -> None:
    try:
        await asyncio.to_thread(submit)
    except Exception as error:  # whatever it is, the caller gets it
        channel.send(error)
    except BaseException:
        channel.cancelled = True
        raise
