"""JsonBodies: middleware for which the bodies of the APIs are JSON, whatever their header calls them.

Ollama reads them so, and `curl -d` calls every body a form. What a browser sends across sites is refused by its origin.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["JsonBodies"]

APIS = ("/api/", "/v1/", "/tokenize", "/detokenize", "/apply-template", "/rerank")
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
    return scope["method"] in ("POST", "PUT", "DELETE") and path.startswith(APIS) and not uploads
