"""Bounds of integers whose schema has none: a model that begins to write digits may never end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ollama_engine.sample.constraints.keywords import ANNOTATIONS

__all__ = ["LARGEST", "integer_bounds", "names_larger"]

LARGEST = 10**15 - 1
"""15 digits, which all readers of JSON hold exactly (RFC 8259, section 6). 2^53 - 1 takes longer to compile."""
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def integer_bounds(schema: Mapping[str, Any]) -> dict[str, int]:
    """`minimum` and `maximum` for a schema of integers, as far as it has none and names no larger number itself."""
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if "integer" not in names or "number" in names or {"const", "enum"} & set(schema) or _is_larger(schema):
        return {}
    bounds = {} if set(LOWER) & set(schema) else {"minimum": -LARGEST}
    return bounds if set(UPPER) & set(schema) else {**bounds, "maximum": LARGEST}


def names_larger(schema: object) -> bool:
    """Whether any schema in this one asserts something of numbers above `LARGEST`."""
    if isinstance(schema, list):
        return any(map(names_larger, schema))
    if not isinstance(schema, Mapping):
        return False
    inner = (value for keyword, value in schema.items() if keyword not in ANNOTATIONS)
    return _is_larger(schema) or any(map(names_larger, inner))


def _is_larger(schema: Mapping[str, Any]) -> bool:
    said = [schema.get(keyword) for keyword in (*LOWER, *UPPER, "const", "enum", "multipleOf")]
    return any(abs(number) >= LARGEST for number in _numbers(said))


def _numbers(value: object) -> Iterator[int | float]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
