"""Answers of a ProcessEngine piece by piece, for threads and for asyncio: closing one cancels its request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ollama_engine.async_tasks import running_loop
from ollama_engine.closing import AsyncClosing, Closing
from ollama_engine.errors import ClosedError
from ollama_engine.runner.chat.results import ChatChunk, ChatResult, collect_chat
from ollama_engine.runner.request.results import Completion, collect

if TYPE_CHECKING:
    from ollama_engine.server.isolation.process_engine import ProcessEngine
    from ollama_engine.server.isolation.remote_stream import RemoteStream

__all__ = ["AsyncProcessStream", "ProcessStream"]


class ProcessStream(Iterator[Any], Closing):
    """Chunks of one answer, as `Stream` and `ChatStream` give them."""

    def __init__(self, engine: ProcessEngine, stream: RemoteStream[Any]) -> None:
        self._engine = engine
        self._stream = stream

    def __next__(self) -> Any:
        chunk = self._engine._wait(_next(self._stream))
        if chunk is None:
            raise StopIteration
        return chunk

    def result(self) -> Completion | ChatResult:
        """The rest of the answer as a whole."""
        with self:
            return _whole(list(self))

    def close(self) -> None:
        """Cancel the request if it has not ended; there are no further chunks. Safe to call twice."""
        if not self._engine.closed:
            with contextlib.suppress(ClosedError):  # closed meanwhile, or this is a forked child
                self._engine._wait(self._stream.aclose())


class AsyncProcessStream(AsyncClosing):
    """Chunks of one answer, as `AsyncStream` and `AsyncChatStream` give them."""

    def __init__(self, engine: ProcessEngine, stream: RemoteStream[Any]) -> None:
        running_loop()
        self._engine = engine
        self._stream = stream
        self.merges = False
        """`AsyncStream` has it; chunks that wait here come one by one."""

    def __aiter__(self) -> AsyncProcessStream:
        return self

    async def __anext__(self) -> Any:
        chunk = await self._engine._coming(_next(self._stream))
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def result(self) -> Completion | ChatResult:
        """The rest of the answer as a whole."""
        async with self:
            return _whole([chunk async for chunk in self])

    completion = result

    async def aclose(self) -> None:
        """Cancel the request if it has not ended; there are no further chunks. Safe to call twice."""
        if not self._engine.closed:
            with contextlib.suppress(ClosedError):
                await self._engine._coming(self._stream.aclose())


async def _next(stream: RemoteStream[Any]) -> Any:
    """The next chunk; None at the end. A future takes no StopAsyncIteration."""
    return await anext(stream, None)


def _whole(chunks: list[Any]) -> Completion | ChatResult:
    if not chunks or chunks[-1].finish_reason is None:
        raise ClosedError("the stream has ended, or was closed, before its result was asked for")
    return collect_chat(chunks) if isinstance(chunks[0], ChatChunk) else collect(chunks)
