"""RemoteStream: chunks that come from another process, for one reader that may leave at any time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from ollama_engine.async_tasks import cancel_and_wait

__all__ = ["RemoteStream"]

Item = TypeVar("Item")

_END = object()


class RemoteStream(Generic[Item]):
    """`AnswerStream` over a source that is read ahead by a task, which ends with this object.

    The request begins when this is made. `aclose`, dropping the stream, and cancelling the task that waits for a chunk
    close the source, and so cancel the request.
    """

    def __init__(self, source: AsyncIterator[Item]) -> None:
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._reading = self._loop.create_task(_read(source, self._arrived))
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._ended:
            raise StopAsyncIteration
        try:
            arrival = await self._arrived.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if arrival is _END:
            self._ended = True
            raise StopAsyncIteration
        if isinstance(arrival, Exception):
            self._ended = True
            raise arrival
        item: Item = arrival
        return item

    async def aclose(self) -> None:
        """Cancel the request if it has not ended; who waits for a chunk gets none. Safe to call twice."""
        self._ended = True
        self._arrived.put_nowait(_END)
        await cancel_and_wait(self._reading)

    def __del__(self) -> None:
        if not self._reading.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the task with it
                self._loop.call_soon_threadsafe(self._reading.cancel)


async def _read(source: AsyncIterator[Item], arrived: asyncio.Queue[Any]) -> None:
    """Put all that comes into the queue. Refers to no stream, which could not be dropped meanwhile."""
    try:
        async for item in source:
            arrived.put_nowait(item)
        arrived.put_nowait(_END)
    except Exception as error:  # the reader gets it, whatever it is
        arrived.put_nowait(error)
    finally:
        await source.aclose()  # type: ignore[attr-defined]  # an async generator
