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
from ollama_engine.chat.dialects.json_calls import read_object
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import Reading

__all__ = ["KIMI_K2", "SOLAR"]


def _read_kimi(call: Call) -> Reading[None]:
    answer = call.answer
    yield from answer.skip_space()
    id = yield from answer.word()
    yield from answer.skip_space()
    yield from answer.expect("<|tool_call_argument_begin|>")
    call.begin(id.removeprefix("functions.").rpartition(":")[0] or id, id)
    yield from answer.skip_space()
    yield from read_object(call)


def _read_solar(call: Call) -> Reading[None]:
    answer = call.answer
    id = yield from answer.word("an id")
    yield from answer.expect("<|tool_call:name|>")
    name = yield from answer.word()
    yield from answer.expect("<|tool_call:args|>")
    call.begin(name, id)
    yield from answer.skip_space()
    yield from read_object(call)


KIMI_K2 = Dialect(
    "kimi-k2",
    sections={
        "<|tool_calls_section_begin|>": MarkedCalls(
            _read_kimi, "<|tool_call_begin|>", "<|tool_call_end|>", section_end="<|tool_calls_section_end|>"
        )
    },
    sections_end_thinking=True,
    turn_ends=("<|im_end|>",),
)
SOLAR = Dialect(
    "solar",
    thinking=(("<|think|>", "<|end|>"),),
    sections={
        "<|tool_calls|>": MarkedCalls(_read_solar, "<|tool_call:begin|>", "<|tool_call:end|>", section_end="<|calls|>")
    },
    dropped=("<|begin|>assistant", "<|content|>", "<|end|>"),
    turn_ends=("<|flush|>", "<|calls|>"),
)
