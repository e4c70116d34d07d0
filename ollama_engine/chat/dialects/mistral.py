"""Mistral's two formats: an array of objects (tokenizers up to version 7), a name and arguments (Tekken, later ones).

    [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}, "id": "a1B2c3D4e"}]
    [THINK]They ask.[/THINK]Let me look.[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}

Both dialects read both. Formats: mistral-common's instruct tokenizers v3 to v13, and the templates. Early Magistral
models write <think>.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer, Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection, read_arguments, write_object
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import Reading
from ollama_engine.chat.dialects.tool_grammar import CallForm, Json, Part, object_schema
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["MISTRAL", "MISTRAL_TEKKEN"]


def _read_named(call: Call) -> Reading[None]:
    """Read name[CALL_ID]id[ARGS]{...}, the id perhaps missing."""
    answer = call.answer
    yield from answer.skip_space()
    name = yield from answer.word()
    id = (yield from answer.word("an id")) if (yield from answer.accept("[CALL_ID]")) else None
    yield from answer.expect("[ARGS]")
    call.begin(name, id)
    yield from read_arguments(call)


def _write_named(tool: ToolDefinition) -> list[Part]:
    return [f"{tool.name}[ARGS]", Json(object_schema(tool))]


_ARRAY = JsonSection()
_NAMED = MarkedCalls(_read_named)


def _calls(answer: Answer) -> Reading[None]:
    yield from answer.skip_space()
    is_array = (yield from answer.peek()) in ("[", "{")
    yield from (_ARRAY if is_array else _NAMED)(answer)


MISTRAL = Dialect(
    "mistral",
    thinking=(("[THINK]", "[/THINK]"), ("<think>", "</think>")),
    sections={"[TOOL_CALLS]": _calls},
    sections_end_thinking=True,
    turn_ends=("</s>",),
    forms=(CallForm(write_object(), begin="[TOOL_CALLS][", between=", ", end="]", marker="[TOOL_CALLS]"),),
)
MISTRAL_TEKKEN = Dialect(
    "mistral-tekken",
    thinking=MISTRAL.thinking,
    sections=MISTRAL.sections,
    sections_end_thinking=True,
    turn_ends=("</s>",),
    forms=(CallForm(_write_named, begin="[TOOL_CALLS]", between="[TOOL_CALLS]", marker="[TOOL_CALLS]"),),
)
