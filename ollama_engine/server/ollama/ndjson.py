"""Answers as Ollama sends them: lines of JSON as they come, or all of them as one object."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Request
from starlette.responses import Response

from ollama_engine.server.errors import message_of
from ollama_engine.server.json_response import json_response
from ollama_engine.server.request_log import note
from ollama_engine.server.streaming import streamed, while_connected

__all__ = ["MEDIA_TYPE", "Line", "as_lines", "respond"]

Line = dict[str, Any]
MEDIA_TYPE = "application/x-ndjson"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


async def respond(
    request: Request, lines: AsyncGenerator[Line, None], joined: Callable[[list[Line]], Line], *, stream: bool
) -> Response:
    """The response that has these lines, one by one or joined. The request is cancelled when its client goes."""
    lines = noted(request, lines)
    if stream:
        return await as_lines(lines)
    return json_response(await while_connected(request, collected(lines, joined)))


async def noted(request: Request, lines: AsyncGenerator[Line, None]) -> AsyncGenerator[Line, None]:
    """The lines, of which the last one tells the log how many tokens there were."""
    async with aclosing(lines):
        async for line in lines:
            if "eval_count" in line:
                note(request, prompt_tokens=line.get("prompt_eval_count"), tokens=line["eval_count"])
            yield line


async def as_lines(lines: AsyncGenerator[Line, None]) -> Response:
    """A response of a line for each object; an error behind the first is the last line."""
    return await streamed(encoded(lines), MEDIA_TYPE, last_line)


async def collected(lines: AsyncGenerator[Line, None], joined: Callable[[list[Line]], Line]) -> Line:
    async with aclosing(lines):
        return joined([line async for line in lines])


async def encoded(lines: AsyncGenerator[Line, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(lines):
        async for line in lines:
            yield to_line(line)


def last_line(error: Exception) -> bytes:
    return to_line({"error": message_of(error)})


def to_line(line: Mapping[str, Any]) -> bytes:
    # A model's token may be half of a surrogate pair only by a bug; a stream of 1000 good lines is not lost for it.
    return (_encode(line) + "\n").encode("utf-8", "replace")
