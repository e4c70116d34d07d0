"""Gemma 4.

    <|channel>thought
    They ask.<channel|>Let me look.<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>

Keys stand without quotes, strings between <|"|> and without escapes. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.literals import Literals
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import ENDS, MalformedError, Reading

__all__ = ["GEMMA4"]

_LITERALS = Literals(quotes=('<|"|>',), escapes=False, bare_keys=True)


def _read_call(call: Call) -> Reading[None]:
    answer = call.answer
    yield from answer.expect("call:")
    name = yield from answer.word()
    call.begin(name)
    character = yield from answer.peek()
    if character != "{":
        raise MalformedError(f"expected an object of arguments, got {character!r}" if character else ENDS)
    yield from _LITERALS.read(answer, call.arguments)


GEMMA4 = Dialect(
    "gemma4",
    thinking=(("<|channel>thought\n", "<channel|>"), ("<|channel>thought", "<channel|>")),
    sections={"<|tool_call>": MarkedCalls(_read_call, end="<tool_call|>")},
    sections_end_thinking=True,
    turn_ends=("<turn|>", "<|tool_response>"),
)
