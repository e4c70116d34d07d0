"""gpt-oss: OpenAI's harmony format, messages with a channel and a recipient.

    <|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>commentary to=functions.weather
        <|constrain|>json<|message|>{"city": "Paris"}<|call|>
    <|channel|>final<|message|>It rains.<|return|>

A message to a recipient is a call, whatever its channel; "analysis" is reasoning, all else content. Messages of one
kind in a row are a line break apart. Format: the "OpenAI harmony response format" guide, and the template, which writes
the recipient before the channel.
"""

from __future__ import annotations

import re

from ollama_engine.chat.dialects.answer import Answer, Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import read_arguments
from ollama_engine.chat.dialects.scanner import Reading, markers
from ollama_engine.chat.dialects.tool_grammar import AnswerOptions, Grammar, Json, Part, ToolChoice, object_schema

__all__ = ["HARMONY"]

_BEGINS = ("<|start|>", "<|channel|>", "<|message|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_CALLERS = ("assistant", "user", "all")


class _Messages:
    """The messages of one answer, and which kind the last one was of."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._last = ""

    def read(self) -> Reading[None]:
        """Read all messages; text outside of them is content."""
        answer = self._answer
        begin: str | None = None
        if answer.reasoning_open:
            begin = yield from self._text("analysis")
        else:
            begin = yield from answer.accept(" to=", "to=")
        while begin is not None or (begin := (yield from answer.until(markers(*_BEGINS), answer.content))) is not None:
            begin = yield from self._message(begin)

    def _message(self, begin: str) -> Reading[str | None]:
        """Read a message whose header begins with this marker; returns what begins the next, if that was read."""
        answer = self._answer
        answer.record(begin)
        if begin == "<|message|>":
            header = begin
        else:
            pieces = [begin]
            found = yield from answer.until(markers("<|message|>", *_ENDS, line_breaks=0), pieces.append)
            if found != "<|message|>":
                answer.content(answer.recorded())
                return None
            header = "".join(pieces)
        recipient = _RECIPIENT.search(header)
        if recipient is not None and recipient[1] not in _CALLERS:
            name = recipient[1].removeprefix("functions.")
            yield from answer.call(lambda call: _read_call(call, name), ends=markers(*_ENDS, line_breaks=0))
            self._last = "call"
            return None
        answer.recorded()
        channel = _CHANNEL.search(header)
        return (yield from self._text("analysis" if channel is not None and channel[1] == "analysis" else "final"))

    def _text(self, kind: str) -> Reading[str | None]:
        """Read a message's text; returns what begins the next message, if that was read."""
        answer = self._answer
        sink = answer.reasoning if kind == "analysis" else answer.content
        if self._last == kind and (yield from answer.peek()):
            sink("\n")
        self._last = kind
        end = yield from answer.until(markers(*_ENDS, *_BEGINS, line_breaks=0), sink)
        return end if end in _BEGINS else None


def _read_call(call: Call, name: str) -> Reading[None]:
    """Read a call's message and the marker behind it."""
    answer = call.answer
    call.begin(name)
    yield from read_arguments(call)
    yield from answer.skip_space()
    if (yield from answer.accept(*_ENDS)) is None:
        yield from answer.close(_ENDS[0], *_BEGINS)


def _read(dialect: Dialect, answer: Answer) -> Reading[None]:
    yield from _Messages(answer).read()


def _answer_grammar(grammar: Grammar, options: AnswerOptions) -> str:
    """Reasoning and a call; or, where none is required, reasoning and content, then a call or the final message."""

    def message(channel: str) -> str:
        return grammar.rule(f"{grammar.text(f'<|channel|>{channel}<|message|>')} {rest}")

    rest = f"{grammar.any_text('<|end|>')} {grammar.text('<|start|>assistant')}"
    opened = rest if options.reasoning_open else ""
    calls: list[list[Part]] = [
        [f"{tool.name} <|constrain|>json<|message|>", Json(object_schema(tool))] for tool in options.tools
    ]
    call = grammar.parts(["<|channel|>commentary to=functions.", ToolChoice(calls)])
    if options.required:
        return f"{opened} {message('analysis')}* {call}"
    said = "TEXT?" if options.value is None else grammar.part(options.value)
    final = f"{grammar.text('<|channel|>final<|message|>')} {said}"
    channels = ("analysis", "commentary") if options.value is None else ("analysis",)
    return f"{opened} ({' | '.join(map(message, channels))})* ({call} | {final})"


HARMONY = Dialect(
    "harmony",
    thinking=(("<|channel|>analysis<|message|>", "<|end|>"),),
    turn_ends=("<|return|>", "<|call|>"),
    read=_read,
    answer_grammar=_answer_grammar,
)
