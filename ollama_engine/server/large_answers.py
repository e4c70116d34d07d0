"""Responses with long lists: vectors of texts, token ids. They are written in a thread, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ollama_engine.server import sse
from ollama_engine.server.errors import ApiError

__all__ = ["MOST_TEXTS", "check_texts", "large_response"]

MOST_TEXTS = 1 << 14
"""Texts of one request for vectors or ranks: with 1,024 numbers each, the answer has about 350 MB."""
ROWS, NUMBERS = 16, 4096
"""Items of a list that are written at once, with Python's lock held for milliseconds: rows, and single numbers."""


async def large_response(body: Mapping[str, Any]) -> Response:
    """An object as JSON. Arrays in it are written as lists."""
    return Response(await asyncio.to_thread(_written, body), media_type="application/json")


def _written(body: Mapping[str, Any]) -> bytes:
    """As `sse.json_bytes` writes it. That holds Python's lock until all of it is written; here each slice does."""
    fields = (sse.json_bytes(name) + b":" + _value(value) for name, value in body.items())
    return b"{" + b",".join(fields) + b"}"


def _value(value: Any) -> bytes:
    if not isinstance(value, list) or not value:
        return sse.json_bytes(value)
    size = NUMBERS if isinstance(value[0], (int, float)) else ROWS
    slices = (sse.json_bytes(value[at : at + size])[1:-1] for at in range(0, len(value), size))
    return b"[" + b",".join(slices) + b"]"


def check_texts(n_texts: int, name: str) -> None:
    """Raise ApiError for more texts than one request may have."""
    if n_texts > MOST_TEXTS:
        raise ApiError(400, f"{name}: one request has {MOST_TEXTS} texts at most, got {n_texts}", param=name)
