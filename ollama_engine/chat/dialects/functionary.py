"""Functionary 3.1 and 3.2.

    <function=weather>{"city": "Paris"}</function>                                               (3.1)
    >>>all
    Let me look.>>>weather
    {"city": "Paris"}                                                                            (3.2)

The prompt of 3.2 ends in ">>>", so its answer begins with a recipient; "all" is the user. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer, Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import read_arguments
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import MalformedError, Reading, markers
from ollama_engine.chat.dialects.tool_grammar import CallForm, Json, Part, object_schema
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["FUNCTIONARY_V31", "FUNCTIONARY_V32"]


def _read_v31(call: Call) -> Reading[None]:
    answer = call.answer
    name = yield from answer.word()
    yield from answer.expect(">")
    call.begin(name)
    yield from read_arguments(call)


def _read_v32(dialect: Dialect, answer: Answer) -> Reading[None]:
    """Read messages, each a recipient, a line break, and content or arguments."""
    yield from answer.accept(">>>")
    answer.record()
    recipient: str | None = yield from answer.accept("all\n")
    while True:
        if recipient is not None:
            answer.recorded()
            if (yield from answer.until(markers(">>>"), answer.content)) is None:
                return
            answer.record(">>>")
        elif not (yield from answer.call(_read_v32_call, certain=False)):
            return
        else:
            yield from answer.skip_space()
            answer.record()
            if (yield from answer.accept(">>>")) is None:
                return
        recipient = yield from answer.accept("all\n")


def _read_v32_call(call: Call) -> Reading[None]:
    answer = call.answer
    name = yield from answer.word()
    yield from answer.expect("\n")
    if not answer.tools:
        raise MalformedError("no tools were offered")
    call.begin(name)
    yield from read_arguments(call)


def _write_v31(tool: ToolDefinition) -> list[Part]:
    return [f"{tool.name}>", Json(object_schema(tool)), "</function>"]


def _write_v32(tool: ToolDefinition) -> list[Part]:
    return [f"{tool.name}\n", Json(object_schema(tool))]


FUNCTIONARY_V31 = Dialect(
    "functionary-v3.1",
    sections={"<function=": MarkedCalls(_read_v31, end="</function>")},
    turn_ends=("<|eot_id|>", "<|eom_id|>"),
    forms=(CallForm(_write_v31, begin="<function=", between="<function=", marker="<function="),),
)
FUNCTIONARY_V32 = Dialect(
    "functionary-v3.2",
    thinking=(),
    read=_read_v32,
    turn_ends=("<|eot_id|>", "<|eom_id|>"),
    forms=(CallForm(_write_v32, between="\n>>>"),),
)
