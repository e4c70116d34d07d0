"""Gemma 4.

    <|channel>thought
    They ask.<channel|>Let me look.<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>

Keys stand without quotes, strings between <|"|> and without escapes. Format: the templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ollama_engine.chat.dialects.answer import Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.literals import Literals
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import ENDS, MalformedError, Reading
from ollama_engine.chat.dialects.tagged_calls import resolved, types_of
from ollama_engine.chat.dialects.tool_grammar import (
    AnyText,
    CallForm,
    Json,
    Members,
    Part,
    Repeated,
    ToolChoice,
    object_schema,
)
from ollama_engine.chat.dialects.tools import ToolDefinition
from ollama_engine.errors import ConfigError, Option

__all__ = ["GEMMA4"]

_QUOTE = '<|"|>'
_UNCHECKED = {
    *("pattern", "minLength", "maxLength", "format", "anyOf", "oneOf", "allOf", "not", "$ref", "minItems", "maxItems"),
    *("uniqueItems", "prefixItems", "contains", "minProperties", "maxProperties", "patternProperties", "propertyNames"),
}
_LITERALS = Literals(quotes=(_QUOTE,), escapes=False, bare_keys=True)


def _read_call(call: Call) -> Reading[None]:
    answer = call.answer
    yield from answer.expect("call:")
    name = yield from answer.word()
    call.begin(name)
    character = yield from answer.peek()
    if character != "{":
        raise MalformedError(f"expected an object of arguments, got {character!r}" if character else ENDS)
    yield from _LITERALS.read(answer, call.arguments)


def _write(tool: ToolDefinition) -> list[Part]:
    return [f"call:{tool.name}", *_written(tool, object_schema(tool), tool.name), "<tool_call|>"]


def _written(tool: ToolDefinition, schema: Any, where: str) -> list[Part]:
    """The parts of a value that follows a schema."""
    schema = resolved(schema, tool.parameters)
    types = types_of(schema) or frozenset()
    refused = set(schema or ()) & _UNCHECKED if isinstance(schema, Mapping) else set()
    if refused or not types:
        raise ConfigError(
            Option("tools"),
            f": {where} has {min(refused)!r}" if refused else f": {where} has no type",
            ", which this model's format of calls cannot be held to",
            advice=("change the schema, and check the argument when the call comes",),
        )
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return [ToolChoice([[_QUOTE + v + _QUOTE if isinstance(v, str) else json.dumps(v)] for v in values])]
    return [ToolChoice([_of_type(kind, tool, schema, where) for kind in sorted(types)])]


def _of_type(kind: str, tool: ToolDefinition, schema: Mapping[str, Any], where: str) -> list[Part]:
    if kind == "string":
        return [_QUOTE, AnyText(_QUOTE)]
    if kind == "array":
        item = _written(tool, schema.get("items", {"type": "string"}), f"{where}[]")
        return ["[", Repeated(item, ","), "]"]
    if kind == "object":
        items = [
            ([f"{key}:", *_written(tool, member, f"{where}.{key}")], key in schema.get("required", ()))
            for key, member in schema.get("properties", {}).items()
        ]
        return ["{", Members(items, ","), "}"]
    return [Json({**schema, "type": kind})]


GEMMA4 = Dialect(
    "gemma4",
    thinking=(("<|channel>thought\n", "<channel|>"), ("<|channel>thought", "<channel|>")),
    sections={"<|tool_call>": MarkedCalls(_read_call, end="<tool_call|>")},
    sections_end_thinking=True,
    turn_ends=("<turn|>", "<|tool_response>"),
    forms=(CallForm(_write, begin="<|tool_call>", between="<|tool_call>", marker="<|tool_call>"),),
)
