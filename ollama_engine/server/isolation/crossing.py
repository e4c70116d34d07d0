"""Calls and results between processes: large ones are encoded, written and read in threads, beside the event loop.

Python's lock is free again and again meanwhile: texts are written piece by piece, lists slice by slice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ollama_engine.multimodal.source import is_picture
from ollama_engine.server.isolation.registry import class_fields, known_name
from ollama_engine.server.json_reading import read_json

__all__ = ["Content", "beside", "content_of", "is_large", "prepared", "value_of"]

Value = TypeVar("Value")
Content = bytes | AsyncIterator[bytes]
"""A body as httpx takes it."""

LARGE, ITEM = 1 << 15, 16
"""Characters and bytes of values that are not handled on the event loop; an item counts as so many. Up to 2 ms."""
PIECE, SLICE = 1 << 16, 256
"""Characters of a text, and items of a list, that are written at once."""
SENT_AT_ONCE = 1 << 18
"""Bytes. What a socket does not take at once is copied, on the event loop."""


def is_large(value: object) -> bool:
    """Whether no event loop should wait while a value is encoded or decoded. Looks at no more than it takes to know."""
    waiting: list[Any] = [value]
    size = 0
    while waiting and size <= LARGE:
        item = waiting.pop()
        size += ITEM
        if isinstance(item, (str, bytes)):
            size += len(item)
        elif isinstance(item, np.ndarray):
            size += item.nbytes
        elif isinstance(item, Mapping):
            size += ITEM * len(item)
            waiting += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)) and not known_name(item.__class__):
            size += ITEM * len(item)
            waiting += item if size <= LARGE else ()
        elif known_name(item.__class__):
            cls: Any = type(item)
            waiting += [getattr(item, field) for field in class_fields(cls)]
        elif is_picture(item):  # becomes a file
            return True
    return size > LARGE


def prepared(work: Callable[..., Value], *args: Any) -> Callable[[], Coroutine[Any, Any, Value]]:
    """The result of `work(*args)`, for later: of small arguments at once, of large ones in a thread when it is awaited.

    Raises what `work` raises of small ones.
    """
    if is_large(args):
        return lambda: asyncio.to_thread(work, *args)
    value = work(*args)

    async def ready() -> Value:
        return value

    return ready


async def beside(work: Callable[..., Value], *args: Any) -> Value:
    """The result of `work(*args)`, in a thread where the arguments are large."""
    return await asyncio.to_thread(work, *args) if is_large(args) else work(*args)


async def content_of(body: Mapping[str, Any]) -> Content:
    """A body as JSON, a large one in pieces."""
    pieces = await beside(_pieces, body)
    return pieces[0] if len(pieces) == 1 else _sent(pieces)


async def value_of(data: bytes) -> Any:
    """The value of JSON that another process of this program wrote. Raises JSONDecodeError and ConfigError."""
    return await beside(partial(read_json, trusted=True), data)


async def _sent(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _pieces(body: Mapping[str, Any]) -> list[bytes]:
    pieces, piece = [], bytearray()
    for part in _parts(body):
        piece += part.encode("ascii")
        if len(piece) >= SENT_AT_ONCE:
            pieces.append(bytes(piece))
            piece.clear()
    return [*pieces, bytes(piece)]


def _parts(value: Any) -> Iterator[str]:
    """JSON of a value, in parts whose writing takes little time each."""
    if isinstance(value, str):
        yield '"'
        yield from (json.dumps(value[at : at + PIECE])[1:-1] for at in range(0, len(value), PIECE))
        yield '"'
    elif isinstance(value, dict) and is_large(value):
        yield "{"
        for number, (name, item) in enumerate(value.items()):
            yield f"{',' if number else ''}{json.dumps(name)}:"
            yield from _parts(item)
        yield "}"
    elif isinstance(value, list) and is_large(value):
        yield "["
        for at in range(0, len(value), SLICE):
            some = value[at : at + SLICE]
            yield "," if at else ""
            if not is_large(some):
                yield json.dumps(some)[1:-1]
                continue
            for number, item in enumerate(some):
                yield "," if number else ""
                yield from _parts(item)
        yield "]"
    else:
        yield json.dumps(value)
