"""Random JSON schemas of the keywords that are supported, in the shapes that people write."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(
    ["a", "id", "name", "first name", "größe", "x/y", 'q"t', "tab\t", "日本", "é", "_", "$ref", "type"]
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=6)
PATTERNS = st.sampled_from(
    ["^[a-z]{1,4}$", "[0-9]", "^(foo|bar)+$", "^\\d{2}-\\w+$", "a|b", "^$", "^\\s*x", '[^"]{2}', "é+"]
)
FORMATS = st.sampled_from(["date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "uri", "duration"])
SMALL = st.integers(0, 4)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-99, 99), TEXTS, st.sampled_from([0.5, -2.25, 1e6, 1.0])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=2)), max_leaves=4,
)  # fmt: skip


@st.composite
def strings(draw: st.DrawFn) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    kind = draw(st.sampled_from(["free", "length", "pattern", "format"]))
    if kind == "length":
        low = draw(SMALL)
        made |= {"minLength": low, "maxLength": low + draw(SMALL)}
    elif kind == "pattern":
        made["pattern"] = draw(PATTERNS)
    elif kind == "format":
        made["format"] = draw(FORMATS)
    return made


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["integer", "number"]))
    made: dict[str, Any] = {"type": kind}
    bound = st.integers(-1000, 1000) if kind == "integer" else st.one_of(
        st.integers(-1000, 1000), st.floats(-1e4, 1e4).map(lambda x: round(x, 3))
    )  # fmt: skip
    if draw(st.booleans()):
        low = draw(bound)
        made[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
        if draw(st.booleans()):
            made[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = math.ceil(low) + draw(st.integers(2, 300))
    elif draw(st.integers(0, 3)) == 0:
        made["multipleOf"] = draw(st.sampled_from([1, 2, 3, 7, 10, 0.5, 0.25]))
    return made


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array"}
    if draw(st.integers(0, 3)) == 0:
        made["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=3))
        made["items"] = False
    else:
        made["items"] = draw(inner)
    low = draw(st.integers(0, 2))
    return made if "prefixItems" in made else made | {"minItems": low, "maxItems": low + draw(SMALL)}


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    made: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        made["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    if draw(st.integers(0, 5)) == 0:
        made["additionalProperties"] = draw(st.one_of(st.booleans(), inner))
    if draw(st.integers(0, 8)) == 0:
        made["patternProperties"] = {"^p[0-9]$": draw(inner)}
    return made


def schemas(max_leaves: int = 8) -> st.SearchStrategy[dict[str, Any]]:
    """JSON schemas, some of which have no value, or more than the grammar can say; those are refused."""
    leaves = st.one_of(
        strings(), numbers(), st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}]),
        st.builds(lambda value: {"const": value}, VALUES),
        st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=4)),
        st.just({"$ref": "#/$defs/shared"}),
    )  # fmt: skip
    grown = st.recursive(
        leaves,
        lambda inner: st.one_of(
            arrays(inner), objects(inner), objects(inner),
            st.builds(lambda many: {"anyOf": many}, st.lists(inner, min_size=1, max_size=3)),
            st.builds(lambda a, b: {"oneOf": [a, b]}, inner, inner),
            st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
        ),
        max_leaves=max_leaves,
    )  # fmt: skip
    shared = st.one_of(strings(), numbers(), objects(strings()))
    return st.builds(lambda schema, inner: {**schema, "$defs": {"shared": inner}}, grown, shared)
