"""Refuses JSON schemas that would take the compiler minutes or gigabytes, before any other work."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from ollama_engine.sample.constraints.keywords import FORMATS
from ollama_engine.sample.constraints.places import fault, named_place, node_at, subschemas

__all__ = ["MOST_PATTERNS", "MOST_SCHEMAS", "MOST_TOGETHER", "refuse_large"]

MOST_SCHEMAS = 10_000
"""Schemas of one. The compiler takes seconds for more, and refuses twice as many."""
MOST_PATTERNS = 100
"""Patterns for names, in all of a schema: 100 compile in 0.1 s, 300 in 10 s."""
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
        if n_patterns > MOST_PATTERNS:
            raise fault(f"there are more than {MOST_PATTERNS}, here and below", (), "patternProperties")
    together = _Together(root, sum(map(_own, schemas)))
    if max(map(together.count, schemas)) > MOST_TOGETHER:
        told = f"more than {MOST_TOGETHER} patterns and formats hold for one text, by allOf or $ref; write one for all"
        raise fault(told, ())


class _Together:
    """Counts the patterns that hold for one text. `n_all`: those of the whole schema."""

    def __init__(self, root: Mapping[str, Any], n_all: int) -> None:
        self._root = root
        self._n_all = n_all
        self._counted: dict[int, int] = {}

    def count(self, schema: object) -> int:
        """A schema's own and those that hold with them; of alternatives, the most that one has."""
        if not isinstance(schema, Mapping):
            return 0
        if id(schema) not in self._counted:
            self._counted[id(schema)] = 0  # it may refer to itself
            n = _own(schema) + self._referred(schema.get("$ref")) + sum(map(self.count, _list(schema, "allOf")))
            for keyword in ("anyOf", "oneOf"):
                n += max(map(self.count, _list(schema, keyword)), default=0)
            self._counted[id(schema)] = n
        return self._counted[id(schema)]

    def _referred(self, reference: object) -> int:
        if not isinstance(reference, str):
            return 0
        if reference != "#" and not reference.startswith("#/"):
            return self._n_all  # an anchor or a URI: the compiler finds out what it names
        try:
            return self.count(node_at(self._root, named_place(reference)))
        except LookupError:
            return 0


def _own(schema: Mapping[str, Any]) -> int:
    known = schema.get("format")
    return ("pattern" in schema) + (isinstance(known, str) and known in FORMATS)


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
