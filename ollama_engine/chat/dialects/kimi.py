"""Kimi K2, and Solar Open, whose calls have an id of their own too.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Paris"}
        <|tool_call_end|><|tool_calls_section_end|>                                              (Kimi K2)
    <|think|>They ask.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1B2c3D4e<|tool_call:name|>weather
        <|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|calls|>                            (Solar Open)

Kimi's id is the whole of "functions.weather:0". Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import read_arguments
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import Reading
from ollama_engine.chat.dialects.tool_grammar import CallForm, Json, Part, Pattern, object_schema
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["KIMI_K2", "SOLAR"]


def _read_kimi(call: Call) -> Reading[None]:
    answer = call.answer
    yield from answer.skip_space()
    id = yield from answer.word()
    yield from answer.skip_space()
    yield from answer.expect("<|tool_call_argument_begin|>")
    call.begin(id.removeprefix("functions.").rpartition(":")[0] or id, id)
    yield from read_arguments(call)


def _read_solar(call: Call) -> Reading[None]:
    answer = call.answer
    id = yield from answer.word("an id")
    yield from answer.expect("<|tool_call:name|>")
    name = yield from answer.word()
    yield from answer.expect("<|tool_call:args|>")
    call.begin(name, id)
    yield from read_arguments(call)


def _write_kimi(tool: ToolDefinition) -> list[Part]:
    begin = f"<|tool_call_begin|>functions.{tool.name}:"
    return [
        begin,
        Pattern("[0-9]{1,3}"),
        "<|tool_call_argument_begin|>",
        Json(object_schema(tool)),
        "<|tool_call_end|>",
    ]


def _write_solar(tool: ToolDefinition) -> list[Part]:
    name = f"<|tool_call:name|>{tool.name}<|tool_call:args|>"
    return ["<|tool_call:begin|>", Pattern("[a-zA-Z0-9]{1,10}"), name, Json(object_schema(tool)), "<|tool_call:end|>"]


KIMI_K2 = Dialect(
    "kimi-k2",
    sections={
        "<|tool_calls_section_begin|>": MarkedCalls(
            _read_kimi, "<|tool_call_begin|>", "<|tool_call_end|>", section_end="<|tool_calls_section_end|>"
        )
    },
    sections_end_thinking=True,
    turn_ends=("<|im_end|>",),
    forms=(
        CallForm(
            _write_kimi,
            begin="<|tool_calls_section_begin|>",
            between="",
            end="<|tool_calls_section_end|>",
            marker="<|tool_calls_section_begin|>",
        ),
    ),
)
SOLAR = Dialect(
    "solar",
    thinking=(("<|think|>", "<|end|>"),),
    sections={
        "<|tool_calls|>": MarkedCalls(_read_solar, "<|tool_call:begin|>", "<|tool_call:end|>", section_end="<|calls|>")
    },
    dropped=("<|begin|>assistant", "<|content|>", "<|end|>"),
    turn_ends=("<|flush|>", "<|calls|>"),
    forms=(CallForm(_write_solar, begin="<|tool_calls|>", between="", marker="<|tool_calls|>"),),
)
