"""Server-sent events: the stream format of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["DONE", "MEDIA_TYPE", "event", "json_bytes"]

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
"""The last event of OpenAI's streams."""


def event(data: Any, name: str | None = None) -> bytes:
    """One event: JSON on one line, under a name where the API names its events."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json_bytes(data) + b"\n\n"


def json_bytes(data: Any) -> bytes:
    """JSON in UTF-8. A lone surrogate, which UTF-8 cannot hold, becomes the escape that JSON has for it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        errors="backslashreplace"
    )
