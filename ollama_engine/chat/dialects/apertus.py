"""Apertus.

    <|inner_prefix|>They ask.<|inner_suffix|>Let me look.
    <|tools_prefix|>[{"weather": {"city": "Paris"}}]<|tools_suffix|>

A call is an object of one member, the tool's name and its arguments. Format: the template.
"""

from __future__ import annotations

import json

from ollama_engine.chat.dialects.answer import Answer, Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import read_arguments
from ollama_engine.chat.dialects.json_scanner import read_string
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import Reading
from ollama_engine.chat.dialects.tool_grammar import CallForm, Json, Part, object_schema
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["APERTUS"]


def _read_call(call: Call) -> Reading[None]:
    """Read {"name": {...}} and the comma behind it."""
    answer = call.answer
    yield from answer.skip_space()
    name = yield from read_string(answer)
    yield from answer.skip_space()
    yield from answer.expect(":")
    call.begin(name)
    yield from read_arguments(call)
    yield from answer.skip_space()
    yield from answer.expect("}")
    yield from answer.skip_space()
    yield from answer.expect(",", "]")


_OBJECTS = MarkedCalls(_read_call, "{", section_end="<|tools_suffix|>")


def _calls(answer: Answer) -> Reading[None]:
    yield from answer.skip_space()
    yield from answer.accept("[")
    yield from _OBJECTS(answer)


def _write(tool: ToolDefinition) -> list[Part]:
    return [f"{{{json.dumps(tool.name)}: ", Json(object_schema(tool)), "}"]


APERTUS = Dialect(
    "apertus",
    thinking=(("<|inner_prefix|>", "<|inner_suffix|>"),),
    sections={"<|tools_prefix|>": _calls},
    sections_end_thinking=True,
    turn_ends=("<|assistant_end|>",),
    forms=(
        CallForm(_write, begin="<|tools_prefix|>[", between=", ", end="]<|tools_suffix|>", marker="<|tools_prefix|>"),
    ),
)
