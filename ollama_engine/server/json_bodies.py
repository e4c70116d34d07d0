"""JsonBodies: middleware for which the bodies of the APIs are JSON, whatever their header calls them.

Ollama reads them so, and `curl -d` calls every body a form. What a browser sends across sites is refused by its origin.
JsonRoute reads them, large ones in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ollama_engine.errors import ConfigError
from ollama_engine.server.json_reading import AT_ONCE, read_json

__all__ = ["JsonBodies", "JsonRequest", "JsonRoute"]

APIS = ("/api/", "/v1/", "/tokenize", "/detokenize", "/apply-template", "/rerank", "/slots")
JSON = (b"content-type", b"application/json")


class JsonBodies:
    """Replaces the header "Content-Type" of requests to the APIs, uploads of files aside."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_json(scope):
            headers = [header for header in scope["headers"] if header[0] != b"content-type"]
            scope = {**scope, "headers": [*headers, JSON]}
        await self._app(scope, receive, send)


def is_json(scope: Scope) -> bool:
    """Whether a request's body is JSON."""
    path: str = scope["path"]
    uploads = path.startswith(("/api/blobs/", "/v1/audio/"))
    return scope["method"] in ("POST", "PUT", "PATCH", "DELETE") and path.startswith(APIS) and not uploads


class JsonRequest(Request):
    """A request whose body may be large, and anything."""

    async def body(self) -> bytes:
        """The bytes. Large ones are put together in a thread: new memory takes the system milliseconds."""
        if not hasattr(self, "_body"):
            chunks = [chunk async for chunk in self.stream()]
            large = sum(map(len, chunks)) > AT_ONCE
            self._body = await asyncio.to_thread(b"".join, chunks) if large else b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        """The body. Raises JSONDecodeError, and HTTPException for what `read_json` refuses, as FastAPI expects it."""
        if not hasattr(self, "_json"):
            data = await self.body()
            try:
                self._json = read_json(data) if len(data) <= AT_ONCE else await asyncio.to_thread(read_json, data)
            except ConfigError as error:
                raise HTTPException(400, str(error)) from None
        return self._json


class JsonRoute(APIRoute):
    """A route whose body is read by `JsonRequest`; routers name it as their `route_class`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI: what answers a request."""
        handler = super().get_route_handler()

        async def answered(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return answered
