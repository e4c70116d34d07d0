"""Dialect: how models of one kind write tool calls and reasoning, and the parser that reads them while they stream."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ollama_engine.chat.dialects.answer import Answer, Handler
from ollama_engine.chat.dialects.scanner import Markers, Reading
from ollama_engine.chat.dialects.tool_grammar import AnswerOptions, CallForm, Grammar, Json, Pattern, start_of_forms
from ollama_engine.chat.dialects.tools import ToolDefinition
from ollama_engine.chat.events import Event
from ollama_engine.errors import ClosedError, ConfigError, Option

__all__ = ["Dialect", "Parser", "new_call_id"]

_ALPHABET = string.ascii_letters + string.digits
_NONE = Markers(())


def new_call_id() -> str:
    """Nine random letters and digits: the one form of an id that every template takes (Mistral's check it)."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class Parser:
    """Reads one answer while it streams in.

    Without tools nothing is a call: what would be one stays text of the answer. Text never gets lost: it comes out as
    content, reasoning, arguments or a malformed call. Only markers go, and white space beside them: up to two line
    breaks before, and all of it behind reasoning and calls.
    """

    def __init__(self, read: Callable[[Answer], Reading[None]], answer: Answer) -> None:
        self._answer = answer
        self._reading = self._read_all(read)
        next(self._reading)

    def _read_all(self, read: Callable[[Answer], Reading[None]]) -> Reading[None]:
        yield
        yield from read(self._answer)
        yield from self._answer.until(_NONE, self._answer.content)

    def feed(self, text: str) -> list[Event]:
        """Parses more text, and returns the events that are certain now. Control tokens come as their text."""
        if self._answer.closed:
            raise ClosedError("this parser has finished; expected a new parser for each answer")
        if text:
            self._answer.extend(text)
            next(self._reading, None)
        return self._answer.drain()

    def finish(self) -> list[Event]:
        """The answer ends here: what was still held back."""
        self._answer.stop()
        next(self._reading, None)
        return self._answer.drain()


@dataclass(frozen=True, repr=False)
class Dialect:
    """How models of one kind write calls and reasoning.

    Attributes:
        name: the name by which callers choose it.
        thinking: markers at the beginning and end of reasoning.
        thinks: whether the model reasons, as far as its template tells. Parsers read reasoning either way; grammars let
            a model begin it only where it does.
        sections: markers that begin calls, and the handler that reads what follows.
        dropped: markers that say nothing a caller needs.
        sections_end_thinking: whether a section's marker is a control token, which ends reasoning that has no end.
        calls_in_thinking: other texts that end it: a section's marker together with how a call begins, since reasoning
            may mention the marker alone.
        turn_ends: texts that end the assistant's turn. Templates of one dialect may do so in different ways; detection
            replaces these by those that it finds.
        read: reads an answer that is not just reasoning, then content with sections in it.
        forms: how calls are written, that of choice first; grammars are made of these.
        answer_grammar: makes the grammar of answers that `read` reads.
    """

    name: str
    thinking: Sequence[tuple[str, str]] = (("<think>", "</think>"),)
    thinks: bool = True
    sections: Mapping[str, Handler] = field(default_factory=dict)
    dropped: Sequence[str] = ()
    sections_end_thinking: bool = False
    calls_in_thinking: Sequence[str] = ()
    turn_ends: Sequence[str] = ()
    read: Callable[[Dialect, Answer], Reading[None]] | None = None
    forms: Sequence[CallForm] = ()
    answer_grammar: Callable[[Grammar, AnswerOptions], str] | None = None

    def __repr__(self) -> str:
        return f"<dialect {self.name}>"

    def read_answer(self, answer: Answer) -> Reading[None]:
        """Read the answer up to its end, or to where only content follows."""
        if self.read is not None:
            return self.read(self, answer)
        return self.read_body(answer)

    def read_body(self, answer: Answer) -> Reading[None]:
        """Read reasoning, then content with sections in it."""
        ends = [*(self.sections if self.sections_end_thinking else ()), *self.calls_in_thinking]
        section = yield from answer.think(self.thinking, self.sections, ends)
        yield from answer.body(self.sections, self.dropped, section)

    def parser(
        self,
        *,
        tools: Sequence[ToolDefinition] = (),
        reasoning_open: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> Parser:
        """A parser of one answer.

        tools: tools that the model may call; a call of any other is malformed.
        reasoning_open: the prompt ends inside the reasoning (see `reasoning_open`).
        new_id: makes ids for calls that come without.
        """
        return Parser(self.read_answer, Answer(tools, reasoning_open, new_id))

    def stops(self) -> tuple[str, ...]:
        """Texts that end the assistant's turn, beside the vocabulary's end tokens."""
        return tuple(self.turn_ends)

    def reasoning_open(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends like this has opened the reasoning, so that the answer begins inside it."""
        return prompt_tail.rstrip().endswith(tuple(begin.rstrip() for begin, _ in self.thinking))

    def tool_grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: str = "auto",
        parallel: bool = True,
        *,
        control_tokens: Mapping[str, int] = MappingProxyType({}),
        reasoning_open: bool = False,
        value: Json | Pattern | None = None,
    ) -> str | None:
        """A grammar (llguidance's Lark) of answers whose calls are well-formed, with arguments that follow the schemas.

        tools: tools that may be called.
        choice: "required" or the name of a tool: reasoning, and then calls, of this tool; "auto": any text, and after
            the marker of a call nothing but a call; "none": no grammar.
        parallel: whether several calls may come.
        control_tokens: texts and ids of the vocabulary's control tokens.
        reasoning_open: see `reasoning_open`.
        value: with "auto", the form of an answer that is no call, in place of any text.

        None where nothing can be forced: without tools, in dialects that have no calls, and with "auto" in those where
        no marker says that a call begins. Raises ConfigError for a choice that is no tool, and for parameters that
        the dialect cannot write.
        """
        if not tools or choice == "none" or not (self.forms or self.answer_grammar):
            return None
        offered = [tool for tool in tools if choice in ("auto", "required", tool.name)]
        if not offered:
            names = ", ".join(tool.name for tool in tools)
            raise ConfigError(
                Option("tool_choice"), f' must be "auto", "none", "required" or one of {names}, got {choice!r}'
            )
        grammar = Grammar(control_tokens)
        options = AnswerOptions(offered, choice != "auto", parallel, reasoning_open, value)
        if self.answer_grammar is not None:
            return grammar.lark(self.answer_grammar(grammar, options))
        thinking = self.thinking if self.thinks or reasoning_open else ()
        start = start_of_forms(grammar, options, self.forms, thinking, self.dropped)
        return None if start is None else grammar.lark(start)
