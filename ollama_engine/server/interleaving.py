"""Several answers at once: their chunks in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TypeVar

from ollama_engine.async_tasks import cancel_and_wait
from ollama_engine.server.served import AnswerStream

__all__ = ["interleaved"]

Chunk = TypeVar("Chunk")


async def interleaved(
    starts: Sequence[Callable[[], AnswerStream[Chunk]]],
) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Start an answer by each of `starts`, and give their chunks with the answer's number.

    The first error ends all of them, and so does closing this generator.
    """
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(aclosing(start())) for start in starts]
        if len(streams) == 1:
            async for chunk in streams[0]:
                yield 0, chunk
            return
        waiting = {asyncio.ensure_future(anext(stream)): number for number, stream in enumerate(streams)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    number = waiting.pop(task)
                    try:
                        chunk = task.result()
                    except StopAsyncIteration:
                        continue
                    waiting[asyncio.ensure_future(anext(streams[number]))] = number
                    yield number, chunk
        finally:
            await cancel_and_wait(*waiting)
