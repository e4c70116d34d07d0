"""A JSON schema as the grammar's compiler takes it: every keyword is enforced or refused, none is left aside.

Constraints that llguidance would ignore are refused here, with their place: keywords that it does not know, options in
the schema that loosen it. Those that it reads too loosely are written more strictly, or refused.

An object that lists `properties` and says nothing of others has no others, as in llama.cpp and xgrammar: a model has
no end of ideas for more. Several schemas that hold for one object (allOf, or a $ref with neighbours) are left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ollama_engine.sample.constraints.disjoint import Comparison
from ollama_engine.sample.constraints.integers import integer_bounds, names_larger
from ollama_engine.sample.constraints.keywords import (
    ANNOTATIONS,
    ASSERTIONS,
    COUNTS,
    FORMATS,
    INT32,
    LISTS,
    MAPS,
    OF_ANY_VALUE,
    OTHER_FORMATS,
    SINGLE,
    UNSUPPORTED,
)
from ollama_engine.sample.constraints.places import Place, at, fault, named_place, node_at, subschemas
from ollama_engine.sample.constraints.schema_size import refuse_large

__all__ = ["checked_schema"]

Schema = dict[str, Any]
MAX_DEPTH = 128
"""Schemas within schemas."""
MOST_PROPERTIES = 4000
"""Properties of one object: 4,000 that are not required compile in a second, and twice as many in four."""
_CONTROL = {chr(code) for code in (*range(0x20), 0x7F)} - set("\b\f\n\r\t")
"""JSON writes these as \\u escapes, which are left out: a name spelled with them would pass as another one."""


def checked_schema(schema: Mapping[str, Any]) -> Schema:
    """The schema to compile. Raises GrammarError for parts that cannot be enforced, and for too many of them."""
    try:
        refuse_large(schema)
        return _Check(schema).rewritten()
    except RecursionError:
        raise fault("values are nested too deeply; make them flatter", ()) from None


class _Check:
    """One schema, walked from its root along references."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._comparison = Comparison(self._resolve)
        self._reached: set[tuple[Place, bool]] = set()
        self._all_defined = False
        """Whether all definitions were visited, for a reference that names none of them by its place."""
        self._names_larger = names_larger(root)
        self._open: set[Place] = set()
        """Schemas of objects for which another one holds too."""

    def rewritten(self) -> Schema:
        """Check all that is reached, and copy it with what is stricter."""
        self._visit(self._root, (), conjoined=False, depth=0)
        copied: Schema = self._copy(self._root, ())
        return copied

    # -- checking ------------------------------------------------------------------------------------------------------

    def _visit(self, schema: object, place: Place, *, conjoined: bool, depth: int) -> None:
        if (place, conjoined) in self._reached or isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping):
            raise fault(f"a schema is an object, true or false, got {schema!r:.40}", place)
        if depth > MAX_DEPTH:
            raise fault(f"schemas are nested more than {MAX_DEPTH} deep", place)
        self._reached.add((place, conjoined))
        if conjoined:
            self._open.add(place)
        for keyword in schema:
            _check_keyword(schema, keyword, place)
        together = conjoined or "allOf" in schema or bool({"anyOf", "oneOf", "$ref"} & set(schema) and _asserts(schema))
        if together:
            self._open.add(place)
        for keyword, name, inner in subschemas(schema):
            if keyword not in ("$defs", "definitions"):
                same = keyword in ("allOf", "anyOf", "oneOf")
                self._visit(inner, at(place, keyword, name), conjoined=together and same, depth=depth + 1)
        if "$ref" in schema:
            self._follow(schema["$ref"], place, conjoined=together, depth=depth)

    def _follow(self, reference: object, place: Place, *, conjoined: bool, depth: int) -> None:
        if not isinstance(reference, str):
            raise fault(f"is a str, got {reference!r:.40}", place, "$ref")
        if reference == "#" or reference.startswith("#/"):
            target = named_place(reference)
            self._visit(self._resolved(target, place), target, conjoined=conjoined, depth=depth + 1)
            return
        if self._all_defined:
            return
        self._all_defined = True
        # An anchor or a URI: what it names is in the definitions, if anywhere; llguidance resolves it.
        for keyword in ("$defs", "definitions"):
            for name, inner in (self._root.get(keyword) or {}).items():
                self._visit(inner, at((), keyword, name), conjoined=True, depth=depth + 1)

    def _resolved(self, target: Place, place: Place) -> object:
        try:
            return node_at(self._root, target)
        except LookupError:
            raise fault(f"names {'/'.join(('', *target))}, which is not there", place, "$ref") from None

    # -- writing -------------------------------------------------------------------------------------------------------

    def _copy(self, schema: Any, place: Place) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        made = {key: value for key, value in schema.items() if key not in ("uniqueItems", "nullable", "discriminator")}
        for keyword, name, inner in subschemas(schema):
            copy = self._copy(inner, at(place, keyword, name))
            if name is None:
                made[keyword] = copy
                continue
            if made[keyword] is schema[keyword]:
                made[keyword] = made[keyword].copy()
            made[keyword][name] = copy
        if isinstance(schema.get("format"), str):
            made = _without_format(made, schema["format"])
        if "oneOf" in schema:
            made |= self._told_apart(made, schema["oneOf"], place)
        for keyword in COUNTS & set(made):
            if isinstance(made[keyword], float) and made[keyword].is_integer():
                made[keyword] = int(made[keyword])
        if place not in self._open or not self._names_larger:  # else another schema's numbers might lie outside
            made |= integer_bounds(made)
        if "propertyNames" in made:
            made |= self._named(made, made.pop("propertyNames"), place)
        if place not in self._open and _lists_all(schema):
            made["additionalProperties"] = False
        return made

    def _told_apart(self, made: Schema, alternatives: list[Any], place: Place) -> Schema:
        """anyOf in the place of a oneOf whose alternatives have no value in common.

        That is judged by what the schema says: a closed object would look as if it had nothing in common with others.
        """
        if not self._comparison.are_disjoint(alternatives):
            raise fault(
                "has alternatives that may share a value; write anyOf, or give each a required property with another "
                "`const`", place, "oneOf",
            )  # fmt: skip
        either = {"anyOf": made.pop("oneOf")}
        return either if "anyOf" not in made else {"allOf": [*made.get("allOf", ()), either]}

    def _named(self, schema: Schema, names: Any, place: Place) -> Schema:
        """An object whose names are listed, or match a pattern, said with `properties` or `patternProperties`."""
        rule = self._resolve(names)
        said = set(rule) - ANNOTATIONS - {"type"} if isinstance(rule, Mapping) else set()
        if rule is True or (isinstance(rule, Mapping) and not said and rule.get("type", "string") == "string"):
            return {}
        others = schema.get("additionalProperties", True)
        if not {"properties", "patternProperties"} & set(schema) and rule:
            if said == {"pattern"}:
                return {"patternProperties": {rule["pattern"]: others}, "additionalProperties": False}
            listed = rule.get("enum", [rule["const"]] if "const" in rule else None)
            if said <= {"enum", "const"} and isinstance(listed, list) and all(isinstance(name, str) for name in listed):
                return {"properties": dict.fromkeys(listed, others), "additionalProperties": False}
            if said == {"format"} and rule["format"] in [*FORMATS]:  # it may be a list
                return {"patternProperties": {FORMATS[rule["format"]]: others}, "additionalProperties": False}
        raise fault(
            "is supported with a pattern, an enum or the format date, time or date-time alone, and without "
            "`properties`; for a dict of another type of keys, such as UUID, take str keys", place, "propertyNames",
        )  # fmt: skip

    def _resolve(self, schema: Any) -> Any:
        """Follows the `$ref` of a schema that has nothing else."""
        seen = 0
        while isinstance(schema, Mapping) and set(schema) - ANNOTATIONS == {"$ref"} and seen < MAX_DEPTH:
            reference = schema["$ref"]
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return schema
            schema, seen = self._resolved(named_place(reference), ()), seen + 1
        return schema


def _asserts(schema: Mapping[str, Any]) -> bool:
    """Whether it says something of objects beside its references and alternatives."""
    return bool({"properties", "patternProperties", "additionalProperties", "required", "allOf"} & set(schema)) or (
        len({"anyOf", "oneOf", "$ref"} & set(schema)) > 1
    )


def _lists_all(schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or {"additionalProperties", "patternProperties"} & set(schema):
        return False
    return set(schema.get("required") or ()) <= set(properties)


# -- one keyword -------------------------------------------------------------------------------------------------------


def _check_keyword(schema: Mapping[str, Any], keyword: object, place: Place) -> None:
    if not isinstance(keyword, str):
        raise fault(f"names are texts, got {keyword!r:.40}", place)
    value = schema[keyword]
    if keyword in ("uniqueItems", "nullable") and value is False:
        return
    if keyword == "nullable":
        raise fault('is OpenAPI\'s; write "type": [..., "null"], or anyOf', place, keyword)
    if keyword in UNSUPPORTED:
        raise fault("is not supported", place, keyword)
    if keyword in ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance"):
        return
    if keyword not in ASSERTIONS | MAPS | LISTS | SINGLE:
        raise fault("is unknown, and nothing is left aside", place, keyword)
    if keyword in MAPS and not isinstance(value, Mapping):
        raise fault(f"is an object of schemas, got {value!r:.40}", place, keyword)
    if keyword in LISTS and not isinstance(value, list):
        raise fault(f"is a list of schemas, got {value!r:.40}", place, keyword)
    if keyword == "$ref" and place and {"$id", "id"} & set(schema):
        raise fault("beside an $id: drafts differ in what it refers to", place, keyword)
    _check_value(schema, keyword, value, place)


def _check_value(schema: Mapping[str, Any], keyword: str, value: Any, place: Place) -> None:
    if keyword in ("const", "enum", "required", "properties"):
        named = list(value) if keyword == "properties" else value
        if bad := next(filter(_unwritable, _texts(named)), None):
            raise fault(f"has a text with a control character, {bad!r:.40}, which is not supported", place, keyword)
    if keyword == "properties" and len(value) > MOST_PROPERTIES:
        raise fault(f"has more than {MOST_PROPERTIES}, got {len(value)}; nest them, or ask for less", place, keyword)
    formats = {*OTHER_FORMATS, *FORMATS, *OF_ANY_VALUE, "int32"}
    if keyword == "format" and (not isinstance(value, str) or value not in formats):
        known = ", ".join(sorted(formats))
        raise fault(f"is one of {known}, got {value!r:.40}", place, keyword)
    if keyword == "minProperties" and isinstance(value, int) and value > len(schema.get("required") or ()) + 1:
        raise fault("may exceed the number of `required` names by one only: a name might come twice", place, keyword)


def _without_format(made: Schema, name: str) -> Schema:
    """The schema with what the format of this name asks for; formats that llguidance has right stay."""
    if name in OTHER_FORMATS:
        return made
    others = {keyword: value for keyword, value in made.items() if keyword != "format"}
    asked = {"pattern": FORMATS[name]} if name in FORMATS else INT32 if name == "int32" else None
    return others if asked is None else {**others, "allOf": [*others.get("allOf", ()), asked]}


def _texts(value: object) -> Iterator[str]:
    """All texts in a JSON value, names included. Raises ConfigError for what is no JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(name)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _unwritable(text: str) -> bool:
    return bool(_CONTROL.intersection(text)) or any("\ud800" <= c <= "\udfff" for c in text)
