"""Refuses JSON schemas that would take the compiler minutes or gigabytes, before any other work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from ollama_engine.sample.constraints.keywords import FORMATS
from ollama_engine.sample.constraints.places import fault, named_place, node_at, subschemas

__all__ = ["MOST_PATTERNS", "MOST_PATTERNS_IN_ALL", "MOST_SCHEMAS", "MOST_TOGETHER", "refuse_large"]

MOST_SCHEMAS = 10_000
"""Schemas of one. The compiler takes seconds for more, and refuses twice as many."""
MOST_PATTERNS = 100
"""Patterns for the names of one object: 100 compile in 0.1 s, 300 in 5 s. They may hold together by allOf or $ref."""
MOST_PATTERNS_IN_ALL = 1000
"""Such patterns of all objects: ten objects with the most take a second."""
MOST_TOGETHER = 10
"""Patterns that one text must match: 12 take up to 0.2 s, 14 take 3 s, 20 take gigabytes."""


def refuse_large(root: Mapping[str, Any]) -> None:
    """Raise GrammarError for more schemas or patterns than are taken. Looks at no more than these."""
    schemas: list[Mapping[str, Any]] = []
    waiting: list[Any] = [root]
    n_patterns = 0
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, Mapping):
            schemas.append(schema)
            below = list(islice(subschemas(schema), MOST_SCHEMAS))
            n_patterns += sum(keyword == "patternProperties" for keyword, _, _ in below)
            waiting += (inner for _, _, inner in below)
        if len(schemas) + len(waiting) > MOST_SCHEMAS:
            raise fault(f"there are more than {MOST_SCHEMAS} schemas, properties included; make it smaller", ())
        if n_patterns > MOST_PATTERNS_IN_ALL:
            raise fault(f"there are more than {MOST_PATTERNS_IN_ALL}, here and below", (), "patternProperties")
    if _Together(schemas, _patterns_of_names).most() > MOST_PATTERNS:
        told = f"there are more than {MOST_PATTERNS} for one object, by allOf or $ref, too; write one for several"
        raise fault(told, (), "patternProperties")
    if _Together(schemas, _patterns_of_text).most() > MOST_TOGETHER:
        told = f"more than {MOST_TOGETHER} patterns and formats hold for one text, by allOf or $ref; write one for all"
        raise fault(told, ())


class _Together:
    """Counts the patterns that hold for one value. `schemas`: all, the root first; `own` counts those of one."""

    def __init__(self, schemas: Sequence[Mapping[str, Any]], own: Callable[[Mapping[str, Any]], int]) -> None:
        self._schemas = schemas
        self._own = own
        self._n_all = sum(map(own, schemas))
        self._counted: dict[int, int] = {}
        self._anchored: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
        if not any({"$id", "id"} & set(schema) for schema in schemas[1:]):  # else names depend on where they stand
            for schema in schemas:
                self._anchored[f"#{schema.get('$anchor')}"].append(schema)

    def most(self) -> int:
        """The most that hold for one value."""
        return max(map(self._count, self._schemas))

    def _count(self, schema: object) -> int:
        """A schema's own and those that hold with them; of alternatives, the most that one has."""
        if not isinstance(schema, Mapping):
            return 0
        if id(schema) not in self._counted:
            self._counted[id(schema)] = 0  # it may refer to itself
            n = self._own(schema) + self._referred(schema.get("$ref")) + sum(map(self._count, _list(schema, "allOf")))
            for keyword in ("anyOf", "oneOf"):
                n += max(map(self._count, _list(schema, keyword)), default=0)
            self._counted[id(schema)] = n
        return self._counted[id(schema)]

    def _referred(self, reference: object) -> int:
        if not isinstance(reference, str):
            return 0
        if reference != "#" and not reference.startswith("#/"):  # an anchor, or what only the compiler finds
            return max(map(self._count, self._anchored.get(reference, ())), default=self._n_all)
        try:
            return self._count(node_at(self._schemas[0], named_place(reference)))
        except LookupError:
            return 0


def _patterns_of_text(schema: Mapping[str, Any]) -> int:
    known = schema.get("format")
    return ("pattern" in schema) + (isinstance(known, str) and known in FORMATS)


def _patterns_of_names(schema: Mapping[str, Any]) -> int:
    patterns = schema.get("patternProperties")
    return len(patterns) if isinstance(patterns, Mapping) else 0


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
