"""BodyLimits: middleware that limits the size of bodies, and the time that they take to come."""

from __future__ import annotations

import asyncio
import math
import time

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ollama_engine.server.errors import send_error

__all__ = ["BodyLimits"]

SLOWEST = 10_000
"""Bytes per second that a client has to send, all in all, behind the first `pause` seconds."""
CLOSE = {"Connection": "close"}
"""Ends the connection: the rest of the body is not read."""


class BodyLimits:
    """Answers larger bodies with status 413, and slower ones with 408.

    Args:
        app: what reads the bodies.
        largest: bytes. Uploads of model files have no limit.
        pause: seconds that a client may let the server wait for its body; more for one that has sent more.
    """

    def __init__(self, app: ASGIApp, largest: int, pause: float) -> None:
        self._app = app
        self._largest = largest
        self._pause = pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        largest = math.inf if scope["path"].startswith("/api/blobs/") else self._largest
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length[:20]) > largest:
            await send_error(too_large(largest), scope, receive, send)
            return
        await self._app(scope, self._limited(receive, largest), send)

    def _limited(self, receive: Receive, largest: float) -> Receive:
        size, waited, complete = 0, 0.0, False

        async def receiving() -> Message:
            nonlocal size, waited, complete
            if complete:  # what comes now is that the client goes, at any time
                return await receive()
            started = time.monotonic()
            patience = self._pause + size / SLOWEST - waited
            message = await within(receive, patience)
            if message is None:
                complete = True
                raise HTTPException(408, "the body of the request came too slowly", CLOSE)
            waited += time.monotonic() - started
            size += len(message.get("body", b""))
            complete = message["type"] != "http.request" or not message.get("more_body", False)
            if size > largest:
                complete = True
                raise too_large(largest)
            return message

        return receiving


async def within(receive: Receive, seconds: float) -> Message | None:
    """The message that comes in that time, or None. `asyncio.wait_for` may lose a cancellation, before Python 3.12."""
    if seconds == math.inf:
        return await receive()
    coming = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((coming,), timeout=max(0.0, seconds))
        return coming.result() if coming.done() else None
    finally:
        coming.cancel()


def too_large(largest: float) -> HTTPException:
    return HTTPException(413, f"the body of the request has more than {largest:.0f} bytes", CLOSE)
