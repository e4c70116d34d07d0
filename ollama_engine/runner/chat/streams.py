"""ChatStream and AsyncChatStream: chunks of one conversation's answer, as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from ollama_engine.closing import AsyncClosing, Closing
from ollama_engine.errors import ClosedError
from ollama_engine.runner.chat.results import ChatChunk, ChatResult, collect_chat
from ollama_engine.runner.request.results import Chunk
from ollama_engine.runner.request.stream import Stream

if TYPE_CHECKING:
    from ollama_engine.runner.request.astream import AsyncStream

__all__ = ["AsyncChatStream", "ChatStream"]


class ChatStream(Iterator[ChatChunk], Closing):
    """The chunks of one answer. Closing or dropping it cancels the request at its next step.

    `next` raises what ended the request early. For one thread: chunks are read in their order.
    """

    def __init__(self, stream: Stream, read: Callable[[Chunk], ChatChunk]) -> None:
        self._stream = stream
        self._read = read

    def __next__(self) -> ChatChunk:
        return self._read(next(self._stream))

    def result(self) -> ChatResult:
        """All that is left to come, as one result. Raises ClosedError where nothing is."""
        with self:
            chunks = list(self)
        return _collected(chunks)

    def close(self) -> None:
        """Cancel the request if it has not ended; there are no further chunks. Safe to call twice."""
        self._stream.close()

    def __repr__(self) -> str:
        return f"ChatStream({self._stream!r})"


class AsyncChatStream(AsyncIterator[ChatChunk], AsyncClosing):
    """`ChatStream` for asyncio: `async for`. Cancelling the task that waits for a chunk cancels the request."""

    def __init__(self, stream: AsyncStream, read: Callable[[Chunk], ChatChunk]) -> None:
        self._stream = stream
        self._read = read

    @property
    def merges(self) -> bool:
        """See `AsyncStream.merges`."""
        return self._stream.merges

    @merges.setter
    def merges(self, value: bool) -> None:
        self._stream.merges = value

    async def __anext__(self) -> ChatChunk:
        return self._read(await anext(self._stream))

    async def result(self) -> ChatResult:
        """All that is left to come, as one result. Raises ClosedError where nothing is."""
        async with self:
            chunks = [chunk async for chunk in self]
        return _collected(chunks)

    async def aclose(self) -> None:
        """Cancel the request if it has not ended; there are no further chunks. Safe to call twice."""
        await self._stream.aclose()

    def __repr__(self) -> str:
        return f"AsyncChatStream({self._stream!r})"


def _collected(chunks: list[ChatChunk]) -> ChatResult:
    if not chunks or chunks[-1].finish_reason is None:
        raise ClosedError("the stream has ended, or was closed, before its result was asked for")
    return collect_chat(chunks)
