"""Calls whose arguments stand between tags, each on its own: <parameter=city>Paris</parameter>.

Values have no quotes, so the tool's JSON Schema says what they are. One that must be a string streams as one; one that
must be an object or an array is read as JSON (Python's literals too); anything else is decided when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ollama_engine.chat.dialects.answer import Call
from ollama_engine.chat.dialects.json_scanner import MAX_DEPTH
from ollama_engine.chat.dialects.literals import PYTHON, escaped
from ollama_engine.chat.dialects.scanner import MalformedError, Reading, Scanner, Sink, markers
from ollama_engine.chat.dialects.tool_grammar import AnyText, Json, Members, Part, ToolChoice, definitions_of
from ollama_engine.chat.dialects.tools import ToolDefinition
from ollama_engine.errors import ConfigError, Option

__all__ = ["CONTAINERS", "STRING", "TaggedCall", "decided", "member", "resolved", "types_of"]

STRING = frozenset({"string"})
CONTAINERS = (frozenset({"object"}), frozenset({"array"}))
_UNCHECKED = {"pattern", "minLength", "maxLength", "format", "anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_JSON_TYPES: Mapping[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    dict: ("object",),
    list: ("array",),
    type(None): ("null",),
}


@dataclass(frozen=True)
class TaggedCall:
    """Reads a name and tagged arguments, up to the call's end marker, which it leaves.

    name_end: text behind the name; "" where the first argument, or the end, follows at once.
    key: text before an argument's name.
    key_end: text behind it.
    value: text before the value, perhaps behind white space.
    value_end: text behind it.
    attributes: between `key_end` and `value` stand attributes, which may say string="true" or type="string"; others
        may stand before `name_end`. Writes those of a value: whether it is a string, and its JSON type.
    gap: text between tags when calls are written.
    quotes: quotation marks that may stand around a value, inside of its tags.
    line_breaks: one line break at each end of a value is layout.
    """

    key: str
    key_end: str
    value_end: str
    value: str = ""
    name_end: str = ""
    attributes: Callable[[bool, str], str] | None = None
    gap: Part = ""
    quotes: tuple[str, str] | None = None
    line_breaks: bool = False

    def __call__(self, call: Call) -> Reading[None]:
        answer = call.answer
        yield from answer.skip_space()
        name = yield from answer.word()
        if self.attributes:
            yield from answer.text_to(self.name_end)
        elif self.name_end:
            yield from answer.expect(self.name_end)
        call.begin(name)
        call.arguments("{")
        separator = ""
        yield from answer.skip_space()
        while (yield from answer.accept(self.key)):
            key, _ = yield from answer.text_to(self.key_end)
            call.arguments(f'{separator}"{escaped(key)}": ')
            yield from self._value(call, key)
            separator = ", "
            yield from answer.skip_space()
        call.arguments("}")

    def write(self, tool: ToolDefinition) -> list[Part]:
        """The parts of a call, up to its end marker."""
        return [tool.name + self.name_end, *self.write_arguments(tool)]

    def write_arguments(self, tool: ToolDefinition) -> list[Part]:
        """The parts of the arguments."""
        required = tool.parameters.get("required", ())
        items = [
            (self._written(tool, key, schema), key in required)
            for key, schema in tool.parameters.get("properties", {}).items()
        ]
        return [self.gap, Members(items)]

    def _written(self, tool: ToolDefinition, key: str, schema: Any) -> list[Part]:
        """The parts of one argument."""
        schema = resolved(schema, tool.parameters)
        types = types_of(schema)
        is_string = types is None or "string" in types
        line = "\n" if self.line_breaks else ""
        before = self.gap if self.value and not self.attributes else ""
        attributes = (
            ""
            if self.attributes is None
            else self.attributes(is_string, "string" if is_string else min(types or ("",)))
        )
        head: list[Part] = [self.key + key + self.key_end, before, attributes + self.value + line]
        if not is_string:
            value: list[Part] = [Json({**schema, **definitions_of(tool.parameters)}), line + self.value_end]
        elif isinstance(schema, Mapping) and types == STRING and ("enum" in schema or "const" in schema):
            choices = schema.get("enum", [schema.get("const")])
            value = [ToolChoice([[choice + line + self.value_end] for choice in choices])]
        else:
            _check_string(tool, key, schema)
            value = [AnyText(self.value_end)]
            if self.quotes:
                head.append(self.quotes[0])
                value = [AnyText(self.quotes[1]), self.value_end]
        return [*head, *value, self.gap]

    def _value(self, call: Call, key: str) -> Reading[None]:
        answer = call.answer
        parameters = {} if call.tool is None else call.tool.parameters
        types = types_of(resolved(member(parameters, key), parameters))
        if self.attributes:
            attributes, _ = yield from answer.text_to(self.value)
            types = _types_said(attributes)
        elif self.value:
            yield from answer.skip_space()
            yield from answer.expect(self.value)
        if self.line_breaks:
            yield from answer.accept("\n")
        no_string = types is not None and "string" not in types
        if types in CONTAINERS or (no_string and (yield from answer.peek()) in ("{", "[")):
            yield from answer.skip_space()
            yield from PYTHON.read(answer, call.arguments)
            yield from answer.skip_space()
            yield from answer.expect(self.value_end)
        elif types == STRING:
            call.arguments('"')
            yield from self._text(answer, lambda text: call.arguments(escaped(text)))
            call.arguments('"')
        else:
            pieces: list[str] = []
            yield from self._text(answer, pieces.append)
            call.arguments(decided("".join(pieces), types))

    def _text(self, answer: Scanner, sink: Sink) -> Reading[None]:
        """Read a value as text, and what ends it."""
        if self.quotes and (yield from answer.accept(self.quotes[0])):
            if (yield from answer.until(markers(self.quotes[1], line_breaks=0), sink)) is None:
                raise MalformedError(f"expected {self.quotes[1]!r}, but the answer ends")
            yield from answer.expect(self.value_end)
            return
        ends = markers(self.value_end, line_breaks=int(self.line_breaks))
        if (yield from answer.until(ends, sink)) is None:
            raise MalformedError(f"expected {self.value_end!r}, but the answer ends")


def member(schema: Any, key: str) -> Any:
    """The schema of an object's member, or of an array's items; None where the schema does not say."""
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties", {})
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    return schema.get("items") if key == "item" else None


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Resolves a `$ref` inside of the root schema; returns any other schema as it is."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or not str(schema.get("$ref", "")).startswith("#/"):
            break
        schema, steps = root, schema["$ref"][2:].split("/")
        for step in steps:
            schema = schema.get(step) if isinstance(schema, Mapping) else None
    return schema


def _check_string(tool: ToolDefinition, key: str, schema: Any) -> None:
    """Refuse what a value that stands without quotes cannot be held to."""
    refused = set(schema or ()) & _UNCHECKED if isinstance(schema, Mapping) else set()
    if refused:
        raise ConfigError(
            Option("tools"),
            f": {tool.name}.{key} has {min(refused)!r}, which this model's format of calls cannot be held to",
            advice=("leave it out of the schema, and check the argument when the call comes",),
        )


def types_of(schema: Any) -> frozenset[str] | None:
    """The JSON types that a schema allows, as far as it says so itself; None where it does not."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(schema.get("type"), str):
        return frozenset({schema["type"]})
    if isinstance(schema.get("type"), list):
        return frozenset(map(str, schema["type"]))
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        return frozenset(_JSON_TYPES[type(value)][0] for value in values if type(value) in _JSON_TYPES)
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            each = [types_of(choice) for choice in schema[union]]
            return None if None in each else frozenset().union(*filter(None, each))
    return None


def _types_said(attributes: str) -> frozenset[str] | None:
    """The types that attributes say: string="true", or type="string"."""
    if 'string="true"' in attributes or 'type="string"' in attributes:
        return STRING
    return frozenset(types for names in _JSON_TYPES.values() for types in names if types != "string")


def decided(text: str, types: frozenset[str] | None) -> str:
    """The JSON of a value: what its text says if the schema allows that, else the text as a string."""
    stripped = text.strip()
    candidate = _PYTHON_WORDS.get(stripped, stripped)
    try:
        value = json.loads(candidate)
    except (ValueError, RecursionError):
        return f'"{escaped(text)}"'
    fits = types is None or not types.isdisjoint(_JSON_TYPES[type(value)])
    return candidate if fits else f'"{escaped(text)}"'
