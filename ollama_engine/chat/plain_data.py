"""Callers' data as plain data: dicts and lists of texts and numbers, whatever objects it came in."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from ollama_engine.errors import ChatError

__all__ = ["as_json", "as_mapping", "is_function", "plain_data", "read_documents"]

MOST_BITS = 8192
"""Bits of an integer. Python refuses to write more than 4300 digits, and so templates and tools cannot read them."""


Kept = Callable[[object], bool]
"""Whether an object stays as it is."""


def _nothing(_: object) -> bool:
    return False


def plain_data(value: object, where: str, kept: Kept = _nothing) -> Any:
    """The same in dicts, lists, str, int, float, bool, None and bytes: nothing with methods that a template might call.

    Objects that are `kept` stay as they are. Raises ChatError for anything else, and for what is nested too deeply.
    """
    try:
        return _plain(value, where, kept)
    except RecursionError:
        raise ChatError(f"{where}: expected what JSON can hold, but it is nested too deeply") from None


def as_mapping(where: str, given: object, kept: Kept = _nothing) -> Mapping[str, Any]:
    """The fields of a dict, a dataclass or a pydantic object, as plain data. Raises ChatError for anything else."""
    fields = plain_data(given, where, kept)
    if not isinstance(fields, dict):
        raise ChatError(
            f"{where}: expected a dict, a dataclass or an object with model_dump, got {type(given).__name__}"
        )
    return fields


def as_json(value: object, where: str) -> str:
    """JSON text. Raises ChatError for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatError(f"{where}: expected what JSON can hold: {error}") from None


def read_documents(documents: object) -> list[dict[str, Any]] | None:
    """Documents as plain data; None for none. Raises ChatError that names the document, by its number from 0."""
    if documents is None:
        return None
    if isinstance(documents, (str, bytes)) or not isinstance(documents, Sequence):
        raise ChatError(
            f'documents: expected a list of dicts such as {{"title": ..., "text": ...}}, got {type(documents).__name__}'
        )
    return [dict(as_mapping(f"documents[{number}]", document)) for number, document in enumerate(documents)]


def _plain(value: object, where: str, kept: Kept) -> Any:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ChatError(f"{where}: expected an integer of at most {MOST_BITS} bits, got one of {value.bit_length()}")
    if value is None or type(value) in (str, int, float, bool, bytes) or kept(value):
        return value
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, f"{where}.{key}", kept) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{number}]", kept) for number, item in enumerate(value)]
    for kind in (str, int, float, bytes):
        if isinstance(value, kind):
            return kind(value) if kind is not str else str.__str__(value)  # type: ignore[arg-type]
    if isinstance(value, type) or is_function(value):
        what = "class" if isinstance(value, type) else "function"
        raise _no_json(where, value, f"the {what} {value.__name__}")
    if dataclasses.is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name), where, kept) for entry in dataclasses.fields(value)}
    if callable(getattr(value, "model_dump", None)):
        return _plain(_dumped(value, where), where, kept)
    raise _no_json(where, value, type(value).__name__)


def is_function(value: object) -> TypeGuard[Callable[..., Any]]:
    """Whether it is a function or a method. They have names; `isroutine` takes other descriptors, too: a partial."""
    return inspect.isroutine(value) and hasattr(value, "__name__")


def _no_json(where: str, value: object, what: str) -> ChatError:
    advice = []
    if where.startswith("tools"):
        advice = ['describe a tool by a dict {"name", "description", "parameters": a JSON schema}', "pass a function"]
    elif hasattr(value, "read"):
        advice = ["pass the path of the file or what it holds"]
    return ChatError(f"{where}: expected what JSON can hold, got {what}", advice=advice)


def _key(key: object, where: str) -> Any:
    if key is None or isinstance(key, (str, int, float, bool)):
        return _plain(key, where, _nothing)
    raise ChatError(f"{where}: expected texts as keys, got {type(key).__name__}")


def _dumped(value: Any, where: str) -> object:
    """Calls `model_dump`, which is the caller's code and may raise anything: that becomes a ChatError."""
    try:
        return value.model_dump()
    except Exception as error:
        raise ChatError(f"{where}: model_dump raises {type(error).__name__}: {error}") from error
