"""ApiKeys: middleware that asks for a key."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from ollama_engine.server.errors import send_error

__all__ = ["ApiKeys"]

OPEN = ("/", "/health")
"""Paths that need no key: those that say whether the server is there. The page's files do not either."""


class ApiKeys:
    """Refuses requests without one of the keys with status 401. Without any keys, nothing is refused."""

    def __init__(self, app: ASGIApp, keys: Sequence[str] = ()) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys and scope["type"] == "http" and not is_open(scope["path"]):
            headers = Headers(scope=scope)
            scheme, _, key = headers.get("authorization", "").partition(" ")
            given = (key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")).encode()
            # All are compared, and each in constant time: the time says nothing of a key.
            if not sum(compare_digest(given, known) for known in self._keys):
                refusal = HTTPException(401, "unauthorized", {"WWW-Authenticate": "Bearer"})
                await send_error(refusal, scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Whether a path says nothing of models."""
    return path in OPEN or (path.startswith("/page/") and path != "/page/live")
