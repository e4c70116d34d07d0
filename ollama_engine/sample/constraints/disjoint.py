"""Whether no value is valid under two JSON schemas, as far as that shows: then oneOf of them is anyOf."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

__all__ = ["Comparison"]

MAX_DEPTH = 4
"""Properties of properties that are compared: schemas may refer to themselves."""
MOST_PAIRS = 20_000
"""Pairs of schemas that are compared for one whole schema, which takes some 0.1 s. Alternatives that one property tells
apart need none."""

Resolve = Callable[[Any], Any]
"""The schema that a schema which is a $ref and nothing else refers to; others as they are."""


class Comparison:
    """Compares alternatives within one schema, which stays as it is meanwhile."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._pairs_left = MOST_PAIRS
        self._values_of: dict[int, frozenset[str] | None] = {}
        self._types_of: dict[int, frozenset[str]] = {}

    def are_disjoint(self, schemas: Sequence[Any]) -> bool:
        """Whether each value is valid under one of these at most. False where it cannot be told, or takes too long."""
        found = [schema for schema in map(self._resolve, schemas) if schema is not False]
        return self._have_own_values(found) or self._have_own_tags(found) or self._are_apart_in_pairs(found)

    # -- all at once ---------------------------------------------------------------------------------------------------

    def _have_own_values(self, schemas: Sequence[Any]) -> bool:
        """Whether the values of each are listed, and none twice."""
        listed: set[str] = set()
        for schema in schemas:
            values = self._values(schema) if isinstance(schema, Mapping) else None
            if values is None or not listed.isdisjoint(values):
                return False
            listed |= values
        return True

    def _have_own_tags(self, schemas: Sequence[Any]) -> bool:
        """Whether all are objects, with a property that each must have and whose values are another one's nowhere."""
        if not all(isinstance(schema, Mapping) and self._types(schema) == {"object"} for schema in schemas):
            return False
        shared = set.intersection(*(set(_required(schema)) for schema in schemas)) if schemas else set()
        return any(
            self._have_own_values([self._resolve(_property(schema, name)) for schema in schemas])
            for name in sorted(shared)
        )

    # -- two by two ----------------------------------------------------------------------------------------------------

    def _are_apart_in_pairs(self, schemas: Sequence[Any]) -> bool:
        return all(self._apart(a, b) for a, b in combinations(schemas, 2))

    def _apart(self, a: Any, b: Any, depth: int = 0) -> bool:
        self._pairs_left -= 1
        if self._pairs_left < 0:
            return False
        if not isinstance(a, Mapping) or not isinstance(b, Mapping):
            return a is False or b is False
        if self._types(a).isdisjoint(self._types(b)):
            return True
        values, others = self._values(a), self._values(b)
        if values is not None and others is not None:
            return values.isdisjoint(others)
        are_objects = self._types(a) == self._types(b) == {"object"}
        return are_objects and depth < MAX_DEPTH and self._have_properties_apart(a, b, depth)

    def _have_properties_apart(self, a: Mapping[str, Any], b: Mapping[str, Any], depth: int) -> bool:
        needed = set(_required(b))
        return any(
            self._apart(self._resolve(_property(a, name)), self._resolve(_property(b, name)), depth + 1)
            for name in _required(a)
            if name in needed
        )

    # -- what one schema says ------------------------------------------------------------------------------------------

    def _types(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """The types of its values; integers are numbers."""
        if id(schema) not in self._types_of:
            self._types_of[id(schema)] = _types(schema, self._values(schema))
        return self._types_of[id(schema)]

    def _values(self, schema: Mapping[str, Any]) -> frozenset[str] | None:
        """All values that it may have, as texts; None where they are not listed."""
        if id(schema) not in self._values_of:
            self._values_of[id(schema)] = _values(schema)
        return self._values_of[id(schema)]


def _types(schema: Mapping[str, Any], values: frozenset[str] | None) -> frozenset[str]:
    if values is not None:
        return frozenset(_type_of(json.loads(value)) for value in values)
    given = schema.get("type", ["array", "boolean", "null", "number", "object", "string"])
    names = [given] if isinstance(given, str) else given
    return frozenset("number" if name == "integer" else name for name in _texts(names))


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _values(schema: Mapping[str, Any]) -> frozenset[str] | None:
    if "const" in schema:
        return frozenset({_text(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(map(_text, schema["enum"]))
    return None


def _text(value: Any) -> str:
    """The same for 1 and 1.0, which JSON Schema takes for equal."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True)


def _required(schema: Mapping[str, Any]) -> Sequence[str]:
    """Properties that its objects must have."""
    return _texts(schema.get("required"))


def _texts(given: Any) -> list[str]:
    """The texts of a list; the compiler refuses what else there is."""
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def _property(schema: Mapping[str, Any], name: str) -> Any:
    return schema.get("properties", {}).get(name, True)
