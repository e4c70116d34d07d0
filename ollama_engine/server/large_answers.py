"""Responses with long lists: vectors of texts, token ids. They are written in a thread, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ollama_engine.server import sse
from ollama_engine.server.errors import ApiError

__all__ = ["MOST_TEXTS", "check_texts", "large_response"]

MOST_TEXTS = 1 << 14
"""Texts of one request for vectors or ranks: with 1,024 numbers each, the answer has about 350 MB."""
ROWS, NUMBERS = 16, 4096
"""Items of a list that are written at once, with Python's lock held for milliseconds: rows, and single numbers."""
SENT_AT_ONCE = 1 << 18
"""Bytes. What a socket does not take at once is copied, on the event loop."""


class LargeResponse(Response):
    """A response whose body goes out in pieces."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for at in range(0, len(body), SENT_AT_ONCE):
            piece = bytes(body[at : at + SENT_AT_ONCE])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def large_response(body: Mapping[str, Any]) -> Response:
    """An object as JSON. Arrays in it are written as lists; lists are empty afterwards."""
    return LargeResponse(await asyncio.to_thread(_written, body), media_type="application/json")


def _written(body: Mapping[str, Any]) -> bytes:
    """As `sse.json_bytes` writes it. That holds Python's lock until all of it is written; here each slice does."""
    parts = [b"{"]
    for name, value in body.items():
        parts += [sse.json_bytes(name), b":", *_value(value), b","]
    return b"".join([*parts[:-1], b"}"])  # without the lock, from a megabyte on


def _value(value: Any) -> Iterator[bytes]:
    """The parts of a value. A list loses its items on the way: to free millions at once takes long, with the lock."""
    if not isinstance(value, list) or not value:
        yield sse.json_bytes(value)
        return
    size = NUMBERS if isinstance(value[0], (int, float)) else ROWS
    value.reverse()
    opens = b"["
    while len(value):
        some = value[-size:]
        del value[-size:]
        yield opens + sse.json_bytes(some[::-1])[1:-1]
        opens = b","
    yield b"]"


def check_texts(n_texts: int, name: str) -> None:
    """Raise ApiError for more texts than one request may have."""
    if n_texts > MOST_TEXTS:
        raise ApiError(400, f"{name}: one request has {MOST_TEXTS} texts at most, got {n_texts}", param=name)
