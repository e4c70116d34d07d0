"""Places in a JSON schema: what lies below a schema, where, and errors that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.keywords import LISTS, MAPS, SINGLE

__all__ = ["Place", "at", "fault", "named_place", "node_at", "subschemas"]

Place = tuple[str, ...]
"""Keywords and names on the way to a schema. Not a JSON pointer: that would repeat long names for each schema below."""


def fault(what: str, place: Place, keyword: str | None = None) -> GrammarError:
    """An error about a place in a schema, whose JSON pointer (RFC 6901) it has."""
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in place)
    said = "" if keyword is None else f"keyword {keyword!r} "
    where = pointer or "the top level"
    return GrammarError(f"the JSON schema cannot be used: at {where}, {said}{what}", pointer=pointer, keyword=keyword)


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(keyword, name or index in it or None, schema) of each schema right below this one."""
    for keyword, value in schema.items():
        if keyword in MAPS and isinstance(value, Mapping):
            for name, inner in value.items():
                yield keyword, name, inner
        elif isinstance(value, list) and (keyword in LISTS or keyword == "items"):
            for index, inner in enumerate(value):
                yield keyword, index, inner
        elif keyword in SINGLE:
            yield keyword, None, value


def at(place: Place, keyword: str, name: object) -> Place:
    """The place of a schema right below another one."""
    return (*place, keyword) if name is None else (*place, keyword, str(name))


def named_place(reference: str) -> Place:
    """The place that a reference names, "#" or "#/..."."""
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in unquote(reference[1:]).split("/")[1:])


def node_at(root: Mapping[str, Any], place: Place) -> object:
    """What is at this place. Raises LookupError where nothing is."""
    node: object = root
    for name in place:
        if isinstance(node, Mapping) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and len(name) < 10 and int(name) < len(node):
            node = node[int(name)]
        else:
            raise LookupError(name)
    return node
