"""Llama 3.1, 3.2 and 3.3.

    {"name": "weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "get_time", "parameters": {}}
    <|python_tag|>brave_search.call(query="Paris")

Without the marker, only what the answer begins with can be a call. Format: Meta's "Llama 3.1 prompt format" and the
templates; the third form is that of built-in tools.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer, Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection, write_object
from ollama_engine.chat.dialects.plain_json import read_unmarked
from ollama_engine.chat.dialects.python_calls import read_python_arguments
from ollama_engine.chat.dialects.scanner import Reading
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["LLAMA3"]


def _read(dialect: Dialect, answer: Answer) -> Reading[None]:
    yield from answer.think(dialect.thinking)
    yield from read_unmarked(answer)
    yield from answer.body(dialect.sections)


def _python_tag(answer: Answer) -> Reading[None]:
    yield from answer.skip_space()
    if (yield from answer.peek()) in ("{", "["):
        yield from JsonSection(separator=";").read(answer)
    else:
        yield from answer.call(_built_in_call)


def _built_in_call(call: Call) -> Reading[None]:
    """Read name.call(key="value"); the name of the tool has no dot."""
    name = yield from call.answer.word()
    yield from call.answer.expect("(")
    call.begin(name.removesuffix(".call"))
    yield from read_python_arguments(call)


LLAMA3 = Dialect(
    "llama3",
    sections={"<|python_tag|>": _python_tag},
    turn_ends=("<|eot_id|>", "<|eom_id|>"),
    read=_read,
    forms=(CallForm(write_object("name", "parameters"), between="; ", marker="<|python_tag|>"),),
)
