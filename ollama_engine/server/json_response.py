"""A response of JSON that can be sent whatever stands in it: texts of clients and of files may have lone surrogates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ollama_engine.server.sse import json_bytes

__all__ = ["json_response"]


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of `json_bytes`."""
    return Response(json_bytes(body), status, headers, "application/json")
