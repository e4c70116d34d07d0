"""RequestLog: middleware that writes one line for each request, and answers unexpected exceptions with status 500.

POST /api/chat 200 0.412s model=llama3.2:latest ignored=user prompt_tokens=31 tokens=90
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ollama_engine.server.errors import CLIENT_GONE, ApiError, send_error
from ollama_engine.server.streaming import ENDING

__all__ = ["RequestLog", "note", "note_names"]

log = logging.getLogger("ollama_engine.server.requests")
KEY = "ollama_engine.noted"
CLAMPED = b"x-clamped-options"
"""Response header: options of which another value is taken than the request or its model gave."""
QUIET = ("/", "/health", "/metrics", "/page/live")
"""Routes that monitoring programs ask again and again."""


def note(request: Request, **facts: object) -> None:
    """Have the line of this request say these too: `model=`, `tokens=` ..."""
    request.scope.setdefault(KEY, {}).update(facts)


def note_names(request: Request, **lists: Sequence[str]) -> None:
    """The same of names that a client wrote; a list of none is left out."""
    note(request, **{fact: ",".join(name[:60] for name in names) for fact, names in lists.items() if names})


class RequestLog:
    """Outermost of the app's own middleware, so that its seconds are those that the client waits."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        noted: dict[str, Any] = scope.setdefault(KEY, {})
        started, status, ended = time.perf_counter(), 0, False

        async def counting(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
                if "clamped" in noted:
                    message["headers"] = [*message.get("headers", ()), (CLAMPED, noted["clamped"].encode("ascii"))]
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, counting)
        except asyncio.CancelledError:
            if status or not scope["app"].state.ending.is_set():
                raise
            # uvicorn cancels what does not end by itself, and logs a traceback of what is cancelled.
            await send_error(ApiError(503, ENDING), scope, receive, counting)
        except Exception as error:
            # Behind the first chunk, the server cuts the connection: the client must not take this for the end.
            if status:
                raise
            await send_error(error, scope, receive, counting)
        finally:
            if status and not ended:
                noted.setdefault("ended", "client gone")
            facts = "".join(f" {name}={printable(value)}" for name, value in noted.items())
            seconds = time.perf_counter() - started
            level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
            fields = {"method": scope["method"], "path": scope["path"], "status": status or CLIENT_GONE,
                      "seconds": seconds, **noted}  # fmt: skip
            log.log(
                level, "%s %s %d %.3fs%s", scope["method"], printable(scope["path"]), status or CLIENT_GONE, seconds,
                facts, extra={"request": fields},
            )  # fmt: skip


def printable(value: object) -> str:
    """A value that came from a client, in one line of the log."""
    text = str(value)[:200]
    return text if text.isprintable() and " " not in text else repr(text)
