"""Streamed responses: a real status until the first chunk, and an end of the request when the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse

__all__ = ["ClientGoneError", "streamed", "while_connected"]

Value = TypeVar("Value")


class ClientGoneError(Exception):
    """The client has closed its connection; nobody reads an answer."""


async def streamed(
    chunks: AsyncGenerator[bytes, None], media_type: str, last_words: Callable[[Exception], bytes]
) -> StreamingResponse:
    """A response of chunks. What fails before the first is raised here, so that the status can say so.

    What fails later becomes `last_words` of the error at the end of the body. When the client goes, `chunks` is closed.
    """
    try:
        first = await anext(chunks)
    except BaseException:
        await chunks.aclose()
        raise

    async def body() -> AsyncIterator[bytes]:
        async with aclosing(chunks):
            yield first
            try:
                async for chunk in chunks:
                    yield chunk
            except Exception as error:  # the status is sent: the body is the only place to say it
                yield last_words(error)

    return StreamingResponse(body(), media_type=media_type, headers={"Cache-Control": "no-store"})


async def while_connected(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of `work`, which is cancelled when the client goes. Raises ClientGoneError then."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for started in (task, gone):
            started.cancel()
            with suppress(BaseException):
                await started


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
