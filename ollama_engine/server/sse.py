"""Server-sent events: the stream format of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

__all__ = ["DONE", "MEDIA_TYPE", "event", "json_bytes"]

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
"""The last event of OpenAI's streams."""


def event(data: Any, name: str | None = None) -> bytes:
    """One event: JSON on one line, under a name where the API names its events."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json_bytes(data) + b"\n\n"


def json_bytes(data: Any) -> bytes:
    """JSON in UTF-8, of which a client can read everything.

    A lone surrogate, which UTF-8 cannot hold, becomes the escape that JSON has for it. NaN and infinities, which Python
    reads in requests but JSON does not have, become null where they are repeated. Arrays are written as lists.
    """
    try:
        text = _json(data)
    except ValueError:
        text = _json(_finite(data))
    return text.encode(errors="backslashreplace")


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_listed)


def _listed(data: object) -> list[Any]:
    """The numbers of an array, which JSON writes as a list."""
    if isinstance(data, np.ndarray):
        numbers: list[Any] = data.tolist()
        return numbers
    raise TypeError(f"{type(data).__name__} is no value of JSON")


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    if isinstance(data, np.ndarray):
        return _finite(data.tolist())
    return None if isinstance(data, float) and not math.isfinite(data) else data
