"""Grammars that force well-formed calls: how a dialect's calls are written, as llguidance's Lark.

A dialect says what its calls look like as parts: text, JSON that follows a schema, free text up to an end, members of
an object, choices. `Grammar` writes parts as rules. Control tokens are named by their ids, because text never matches
them; which markers are control tokens depends on the vocabulary, not on the dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = [
    "EMPTY",
    "AnswerOptions",
    "AnyText",
    "CallForm",
    "Grammar",
    "Json",
    "Members",
    "Part",
    "Pattern",
    "Repeated",
    "ToolChoice",
    "object_schema",
    "optional",
    "start_of_forms",
]


EMPTY = '""'
LONGEST = 200
"""Characters of a rule's body from which on its parts get rules of their own."""


@dataclass(frozen=True)
class Json:
    """JSON that follows a schema."""

    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Pattern:
    """Text that matches a regular expression; not the empty text."""

    regex: str


@dataclass(frozen=True)
class AnyText:
    """Any text, up to and with the first `end`."""

    end: str


@dataclass(frozen=True)
class ToolChoice:
    """One of several sequences of parts."""

    choices: Sequence[Sequence[Part]]


@dataclass(frozen=True)
class Repeated:
    """Any number of items, a separator between them."""

    item: Sequence[Part]
    separator: str


@dataclass(frozen=True)
class Members:
    """Items in their order, a separator between them; those that are not required may be missing.

    items: parts, and whether they are required.
    """

    items: Sequence[tuple[Sequence[Part], bool]]
    separator: str = ""


Part = str | Json | Pattern | AnyText | ToolChoice | Repeated | Members


def optional(*parts: Part) -> Part:
    """Parts that may be missing."""
    return Members([(parts, False)])


@dataclass
class Grammar:
    """Rules of a grammar while they are made.

    control_tokens: texts of the vocabulary's control tokens, and their ids.
    """

    control_tokens: Mapping[str, int]
    _rules: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """Text as terminals, control tokens by their ids."""
        pieces = re.split(f"({self._tokens_in(text)})", text)
        written = (
            f"<[{self.control_tokens[piece]}]>" if number % 2 else json.dumps(piece, ensure_ascii=False)
            for number, piece in enumerate(pieces)
            if piece
        )
        return " ".join(written)

    def _tokens_in(self, text: str) -> str:
        """A pattern of the control tokens that stand in the text."""
        tokens = sorted((token for token in self.control_tokens if token and token in text), key=len, reverse=True)
        return "|".join(map(re.escape, tokens)) or "(?!)"

    def rule(self, body: str, options: str = "") -> str:
        """The name of a rule with this body."""
        key = f"{options}: {body}"
        if key not in self._names:
            self._names[key] = f"rule_{len(self._names)}"
            self._rules.append(f"{self._names[key]}{key}")
        return self._names[key]

    def any_text(self, end: str) -> str:
        """Any text up to and with the first `end`."""
        token = re.search(self._tokens_in(end), end)
        if token is None:
            return self.rule(f"/(?s:.*){_escaped(end)}/", "[lazy]")
        if token.start() == 0:
            return f"TEXT? {self.text(end)}"
        return f"/(?s:.*){_escaped(end[: token.start()])}/ {self.text(end[token.start() :])}"

    def begins_with_token(self, text: str) -> bool:
        """Whether a text begins with a control token."""
        return any(token and text.startswith(token) for token in self.control_tokens)

    def parts(self, parts: Sequence[Part]) -> str:
        """Parts, one behind the other."""
        return " ".join(filter(None, map(self.part, parts)))

    def part(self, part: Part) -> str:
        """A part as the right side of a rule."""
        if isinstance(part, str):
            written = self.text(part)
        elif isinstance(part, Json):
            written = self.rule("%json " + json.dumps(part.schema, ensure_ascii=False))
        elif isinstance(part, Pattern):
            written = self.rule(f"/{part.regex}/")
        elif isinstance(part, AnyText):
            written = self.any_text(part.end)
        elif isinstance(part, ToolChoice):
            written = f"({' | '.join(self.parts(choice) or EMPTY for choice in part.choices)})"
        elif isinstance(part, Repeated):
            item, separator = self.rule(self.parts(part.item)), self.text(part.separator)
            written = f"({item} ({separator} {item})*)?"
        else:
            written = self._members(part.items, self.text(part.separator))
        return written

    def _members(self, items: Sequence[tuple[Sequence[Part], bool]], separator: str) -> str:
        """The items. `first` is what may stand from an item on where none came before it, `later` where one did."""
        first = later = ""
        for parts, required in reversed(items):
            this, both = self.parts(parts), f"{separator} {self.parts(parts)}".strip()
            if required:
                first, later = f"{this} {later}", f"{both} {later}"
            else:
                first, later = f"({this} {later} | {first or EMPTY})", f"({both})? {later}"
            if len(later) > LONGEST:
                first, later = self.rule(first), self.rule(later)
        return first if separator else later

    def lark(self, start: str) -> str:
        """The grammar's text."""
        return "\n".join([f"start: {start}", *self._rules, "TEXT: /(?s:.+)/", r"SPACE: /[ \n]{1,4}/", ""])


@dataclass(frozen=True)
class CallForm:
    """How one or several calls are written.

    write: the parts of a call.
    begin, between, end: what stands before the first call, between two (None where there is never a second) and behind
        the last. Without what ends the turn anyway.
    marker: after which only calls can come, most often what `begin` starts with; "" where there is none.
    """

    write: Callable[[ToolDefinition], Sequence[Part]]
    begin: str = ""
    between: str | None = None
    end: str = ""
    marker: str = ""

    def required(self, grammar: Grammar, tools: Sequence[ToolDefinition], parallel: bool) -> str:
        """Calls and nothing else."""
        return self._calls(grammar, tools, parallel, self.begin)

    def section(self, grammar: Grammar, tools: Sequence[ToolDefinition], parallel: bool) -> str:
        """Free text up to the marker, and calls behind it."""
        begin = self.begin.removeprefix(self.marker)
        if grammar.begins_with_token(self.marker):
            return self._calls(grammar, tools, parallel, self.marker + begin)
        return f"{grammar.any_text(self.marker)} {self._calls(grammar, tools, parallel, begin)}"

    def _calls(self, grammar: Grammar, tools: Sequence[ToolDefinition], parallel: bool, begin: str) -> str:
        call = grammar.rule(grammar.part(ToolChoice([self.write(tool) for tool in tools])))
        more = "" if self.between is None or not parallel else f"({grammar.text(self.between)} {call})*"
        return grammar.rule(" ".join(filter(None, (grammar.text(begin), call, more, grammar.text(self.end)))))


@dataclass(frozen=True)
class AnswerOptions:
    """Arguments of `Dialect.tool_grammar`, which says what they mean."""

    tools: Sequence[ToolDefinition]
    required: bool
    parallel: bool
    reasoning_open: bool
    value: Json | Pattern | None = None


def start_of_forms(
    grammar: Grammar,
    options: AnswerOptions,
    forms: Sequence[CallForm],
    thinking: Sequence[tuple[str, str]],
    dropped: Sequence[str],
) -> str | None:
    """The start rule: reasoning, then calls in the first of the forms, a value beside them, or free text with calls.

    None where nothing can be forced, because no form has a marker to wait for.
    """
    before = _reasoning(grammar, thinking, options.reasoning_open)
    if options.required:
        return f"{before} {forms[0].required(grammar, options.tools, options.parallel)}"
    if options.value is not None:
        calls = forms[0].required(grammar, options.tools, options.parallel)
        return f"{before} ({calls} | {grammar.part(options.value)})"
    sections = [form.section(grammar, options.tools, options.parallel) for form in forms if form.marker]
    if not sections:
        return None
    tokens = [grammar.text(token) for token in dropped if grammar.begins_with_token(token)]
    free = grammar.rule(" | ".join(["TEXT", *tokens]))
    return f"{before} ({free}* ({' | '.join(sections)})){'*' if options.parallel else '?'} {free}*"


def _reasoning(grammar: Grammar, pairs: Sequence[tuple[str, str]], reasoning_open: bool) -> str:
    """The reasoning that an answer may begin with, or, where the prompt has opened it, begins with."""
    if not pairs:
        return ""
    begin, end = pairs[0]
    block = f"{grammar.any_text(end)} SPACE?"
    return block if reasoning_open else f"({grammar.text(begin)} {block})?"


def _escaped(text: str) -> str:
    """Text inside of a pattern between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


def object_schema(tool: ToolDefinition) -> Mapping[str, Any]:
    """The schema of a tool's arguments, which are an object."""
    return {"type": "object", **tool.parameters}


def definitions_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema's definitions, which `$ref`s in one of its members need beside that member."""
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}
