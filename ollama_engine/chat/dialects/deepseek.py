"""DeepSeek R1, V3 and V3.1.

    <think>They ask.</think>
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>                                                           (R1, V3)
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>
        <｜tool▁calls▁end｜>                                                                             (V3.1)

Both dialects read both. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import read_arguments
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import Reading
from ollama_engine.chat.dialects.tool_grammar import CallForm, Json, Part, object_schema
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["DEEPSEEK_V3", "DEEPSEEK_V31"]


def _read_call(call: Call) -> Reading[None]:
    answer = call.answer
    yield from answer.skip_space()
    name = yield from answer.word()
    yield from answer.expect("<｜tool▁sep｜>")
    yield from answer.skip_space()
    fenced = (yield from answer.peek()) not in ("{", '"')
    if fenced:  # what came first was the type, "function"
        name = yield from answer.word()
        yield from answer.skip_space()
        yield from answer.expect("```json")
        yield from answer.skip_space()
    call.begin(name)
    yield from read_arguments(call)
    if fenced:
        yield from answer.skip_space()
        yield from answer.expect("```")


def _write_v3(tool: ToolDefinition) -> list[Part]:
    begin = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{tool.name}\n```json\n"
    return [begin, Json(object_schema(tool)), "\n```<｜tool▁call▁end｜>"]


def _write_v31(tool: ToolDefinition) -> list[Part]:
    return [f"<｜tool▁call▁begin｜>{tool.name}<｜tool▁sep｜>", Json(object_schema(tool)), "<｜tool▁call▁end｜>"]


_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

DEEPSEEK_V3 = Dialect(
    "deepseek-v3",
    sections={_BEGIN: MarkedCalls(_read_call, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", section_end=_END)},
    sections_end_thinking=True,
    turn_ends=("<｜end▁of▁sentence｜>",),
    forms=(CallForm(_write_v3, begin=_BEGIN, between="\n", end=_END, marker=_BEGIN),),
)
DEEPSEEK_V31 = Dialect(
    "deepseek-v3.1",
    sections=DEEPSEEK_V3.sections,
    sections_end_thinking=True,
    turn_ends=("<｜end▁of▁sentence｜>",),
    forms=(CallForm(_write_v31, begin=_BEGIN, between="", end=_END, marker=_BEGIN),),
)
