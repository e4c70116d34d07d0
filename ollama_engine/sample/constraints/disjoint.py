"""Whether no value is valid under two JSON schemas, as far as that shows: then oneOf of them is anyOf."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

__all__ = ["are_disjoint"]

MAX_DEPTH = 4
"""Properties of properties that are compared: schemas may refer to themselves."""

Resolve = Callable[[Any], Any]
"""The schema that a schema which is a $ref and nothing else refers to; others as they are."""


def are_disjoint(schemas: list[Any], resolve: Resolve) -> bool:
    """Whether each value is valid under one of these at most. False where it cannot be told."""
    found = [resolve(schema) for schema in schemas]
    return all(_apart(a, b, resolve) for a, b in combinations(found, 2))


def _apart(a: Any, b: Any, resolve: Resolve, depth: int = 0) -> bool:
    if a is False or b is False:
        return True
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return False
    if not _types(a) & _types(b):
        return True
    values, others = _values(a), _values(b)
    if values is not None and others is not None:
        return not values & others
    return _types(a) == _types(b) == {"object"} and any(
        depth < MAX_DEPTH and _apart(resolve(_property(a, name)), resolve(_property(b, name)), resolve, depth + 1)
        for name in _shared_names(a, b)
    )


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types of its values; integers are numbers."""
    values = _values(schema)
    if values is not None:
        return frozenset(_type_of(json.loads(value)) for value in values)
    given = schema.get("type", ["array", "boolean", "null", "number", "object", "string"])
    names = [given] if isinstance(given, str) else given
    return frozenset("number" if name == "integer" else name for name in names)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _values(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """All values that it may have, as texts; None where they are not listed."""
    if "const" in schema:
        return frozenset({_text(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(map(_text, schema["enum"]))
    return None


def _text(value: Any) -> str:
    """The same for 1 and 1.0, which JSON Schema takes for equal."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True)


def _shared_names(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Properties that objects of both must have."""
    return [name for name in a.get("required", ()) if name in b.get("required", ())]


def _property(schema: Mapping[str, Any], name: str) -> Any:
    return schema.get("properties", {}).get(name, True)
