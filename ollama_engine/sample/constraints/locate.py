"""Where in a JSON schema the compiler's refusal comes from: it says what is wrong, and not always where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.places import Place, at, fault, subschemas

__all__ = ["located"]

MOST_PROBES = 400
"""Schemas compiled to find the place; a larger schema's error may name a place further up."""

DEFINITIONS = ("$schema", "$defs", "definitions")
LONGEST = 300
"""Characters of the compiler's message: some quote a regular expression of pages."""

Refusal = Callable[[Mapping[str, Any]], str]
"""schema -> the compiler's error message; "" for none."""


def located(schema: Mapping[str, Any], refusal: Refusal) -> GrammarError:
    """The error about a schema that is refused: the innermost place, and keyword, without which it would not be."""
    place: Place = ()
    wrong, said, left = schema, refusal(schema), MOST_PROBES
    kept = {key: schema[key] for key in DEFINITIONS if key in schema}
    while left > 0:
        for keyword, name, inner in _inside(wrong):
            left -= 1
            told = refusal({**kept, **inner}) if isinstance(inner, Mapping) else ""
            if told:
                wrong, place, said = inner, at(place, keyword, name), told
                break
            if left <= 0:
                break
        else:
            break
    return fault(said[:LONGEST], place, _keyword(wrong, kept, refusal))


def _inside(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Subschemas, definitions first: what refers to one is refused for what is in there."""
    found = list(subschemas(schema))
    yield from sorted(found, key=lambda each: each[0] not in DEFINITIONS)


def _keyword(schema: Mapping[str, Any], kept: Mapping[str, Any], refusal: Refusal) -> str | None:
    for keyword in schema:
        if keyword in DEFINITIONS or keyword == "type":
            continue
        without = {key: value for key, value in schema.items() if key != keyword}
        if not refusal({**kept, **without}):
            return keyword
    return "type" if "type" in schema else None
