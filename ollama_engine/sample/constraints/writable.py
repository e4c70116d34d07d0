"""Refuses JSON schemas with texts that the vocabulary cannot write: some have no tokens for rare bytes.

An answer that begins such a text could not go on, so a schema with one is refused before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ollama_engine.sample.constraints.places import Place, at, fault, subschemas

__all__ = ["check_writable"]


def check_writable(schema: Mapping[str, Any], writes: Callable[[str], bool]) -> None:
    """Raise GrammarError for a name or value of a checked schema for which `writes` is false."""
    waiting: list[tuple[Place, Mapping[str, Any]]] = [((), schema)]
    while waiting:
        place, inner = waiting.pop()
        for keyword, text in _texts(inner):
            if not writes(text):
                raise fault(f"has {text!r:.80}, which the model's vocabulary has no tokens for", place, keyword)
        for keyword, name, part in subschemas(inner):
            if isinstance(part, Mapping):
                waiting.append((at(place, keyword, name), part))


def _texts(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(keyword, text) of the texts that an answer writes letter by letter."""
    for keyword in ("const", "enum", "required"):
        yield from ((keyword, text) for text in _strings(schema.get(keyword)))
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        yield from (("properties", name) for name in properties)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield name
            yield from _strings(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _strings(part)
