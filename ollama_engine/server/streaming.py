"""Streamed responses: a real status until the first chunk, and an end of the request when the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ollama_engine.async_tasks import cancel_and_wait
from ollama_engine.server.errors import ApiError, ClientGoneError, log_failure

__all__ = ["ENDING", "streamed", "while_connected"]

ENDING = "the server is shutting down"

Value = TypeVar("Value")


async def streamed(
    chunks: AsyncGenerator[bytes, None], media_type: str, last_words: Callable[[Exception], bytes]
) -> Response:
    """A response of chunks. What fails before the first becomes an error response, with a status that says so.

    What fails later becomes `last_words` of the error at the end of the body. When the client goes, before or after
    the first chunk, `chunks` is closed.
    """
    return StreamedResponse(chunks, media_type, last_words)


class StreamedResponse(Response):
    """See `streamed`. Exceptions before the first chunk leave `__call__`; the app's handlers answer them."""

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], media_type: str, last_words: Callable[[Exception], bytes]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.media_type = media_type
        self.body = b""
        self._chunks = chunks
        self._last_words = last_words
        self._started = False
        self.init_headers({"Cache-Control": "no-store"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_listening(scope, receive, self._send_all(send))
        except ClientGoneError:
            if not self._started:
                raise

        except ApiError as error:
            if not self._started:
                raise
            await self._say_last(error, send)

    async def _send_all(self, send: Send) -> None:
        chunks = self._chunks
        try:
            first = await anext(chunks)
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except Exception as error:  # the status is sent: the body is the only place to say it
                await self._say_last(error, send)
            else:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await chunks.aclose()

    async def _say_last(self, error: Exception, send: Send) -> None:
        log_failure("a stream ends with an error", error)
        await send({"type": "http.response.body", "body": self._last_words(error), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of `work`, which is cancelled when the client goes. Raises ClientGoneError then.

    Raises ApiError where the server ends before that: `app.state.ending` is set.
    """
    return await while_listening(request.scope, request.receive, work)


async def while_listening(scope: Scope, receive: Receive, work: Coroutine[Any, Any, Value]) -> Value:
    """`while_connected`, for a connection whose request has been read."""
    ending: asyncio.Event | None = getattr(scope["app"].state, "ending", None)
    try:
        return await _while_wanted(ending, receive, work)
    except asyncio.CancelledError:
        if ending is None or not ending.is_set():
            raise
        raise ApiError(503, ENDING) from None  # uvicorn cancels what has not ended yet


async def _while_wanted(ending: asyncio.Event | None, receive: Receive, work: Coroutine[Any, Any, Value]) -> Value:
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    ends = [] if ending is None else [asyncio.ensure_future(ending.wait())]
    try:
        await asyncio.wait((task, gone, *ends), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError if gone.done() else ApiError(503, ENDING)
    finally:
        for waiting in (gone, *ends):
            waiting.cancel()
        if not task.done():
            await cancel_and_wait(task)  # what it holds is free when this returns


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
