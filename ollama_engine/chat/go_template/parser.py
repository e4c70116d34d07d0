"""From tokens to nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ollama_engine.chat.go_template.lexer import ActionTokens, LiteralText, Token, split_source
from ollama_engine.chat.go_template.nodes import (
    Action,
    Branch,
    Chain,
    Constant,
    Expression,
    Field,
    Function,
    If,
    Invoke,
    Jump,
    Node,
    Pipe,
    PipeCommand,
    Range,
    TextNode,
    Variable,
    With,
)  # fmt: skip
from ollama_engine.errors import ChatError

__all__ = ["ParsedTemplate", "parse"]

BRANCHES: dict[str, type[Branch]] = {"if": If, "with": With, "range": Range}
CONSTANTS = {"true": True, "false": False, "nil": None}
MAX_DEPTH = 100


@dataclass(slots=True)
class ParsedTemplate:
    """A parsed template.

    Attributes:
        body: the nodes of the template itself.
        defined: the bodies of `{{define}}` and `{{block}}`, by name.
    """

    body: tuple[Node, ...] = ()
    defined: dict[str, tuple[Node, ...]] = field(default_factory=dict)


def parse(source: str, knows: Callable[[str], bool]) -> ParsedTemplate:
    """The nodes of a source. `knows` says whether there is a function of a name. Raises ChatError with the line."""
    parser = _Parser(source, knows)
    body, end = parser.nodes()
    if end is not None:
        raise parser.wrong(f"{{{{{end[0]}}}}} has nothing to end")
    parser.template.body = body
    return parser.template


class _Parser:
    def __init__(self, source: str, knows: Callable[[str], bool]) -> None:
        self._parts = split_source(source)
        self._knows = knows
        self._line = 1
        self._depth = 0
        self._loops = 0
        self._variables = ["$"]
        self.template = ParsedTemplate()

    def wrong(self, what: str) -> ChatError:
        return ChatError(f"the template is not valid, line {self._line}: {what}")

    def nodes(self) -> tuple[tuple[Node, ...], tuple[str, _Words] | None]:
        """Nodes as far as an `end` or `else`, and which of them with what follows it; None at the end of the source."""
        nodes: list[Node] = []
        for part in self._parts:
            if isinstance(part, LiteralText):
                nodes.append(TextNode(part.text))
                continue
            self._line = part.line
            words = _Words(part, self)
            if words.keyword() in ("end", "else"):
                return tuple(nodes), (str(words.next().value), words)
            node = self._node(words)
            if node is not None:
                nodes.append(node)
        return tuple(nodes), None

    def _node(self, words: _Words) -> Node | None:
        keyword = words.keyword()
        if keyword in BRANCHES:
            words.next()
            return self._branch(BRANCHES[keyword], words)
        if keyword in ("break", "continue"):
            words.next()
            words.done()
            if not self._loops:
                raise self.wrong(f"{{{{{keyword}}}}} stands outside of a range")
            return Jump(keyword)
        if keyword in ("define", "block", "template"):
            words.next()
            return self._named(keyword, words)
        pipe = words.pipe(self._variables)
        words.done()
        return Action(pipe, self._line)

    def _branch(self, kind: type[Branch], words: _Words) -> Branch:
        line, known = self._line, len(self._variables)
        self._deeper()
        pipe = words.pipe(self._variables, in_range=kind is Range)
        words.done()
        self._loops += kind is Range
        body, end = self.nodes()
        self._loops -= kind is Range
        otherwise: tuple[Node, ...] = ()
        if end is not None and end[0] == "else":
            otherwise, end = self._otherwise(end[1])
        if end is None:
            raise ChatError(f"the template is not valid, line {line}: {{{{{kind.__name__.lower()}}}}} has no end")
        end[1].done()
        del self._variables[known:]
        self._depth -= 1
        return kind(pipe, body, otherwise, line)

    def _otherwise(self, words: _Words) -> tuple[tuple[Node, ...], tuple[str, _Words] | None]:
        """Parses the branch behind `else`; `else if` and `else with` share the `end` of the action they belong to."""
        keyword = words.keyword()
        if keyword in ("if", "with"):
            words.next()
            branch = self._branch(BRANCHES[keyword], words)
            return (branch,), ("end", _Words(ActionTokens([], self._line), self))
        words.done()
        return self.nodes()

    def _named(self, keyword: str, words: _Words) -> Node | None:
        name = words.next()
        if name.kind != "constant" or not isinstance(name.value, str):
            raise self.wrong(f"{keyword} is followed by the name of a template, in quotes")
        line = self._line
        pipe = None if keyword == "define" or words.at_end() else words.pipe(self._variables)
        words.done()
        if keyword != "template":
            self._deeper()
            outer, self._variables = self._variables, ["$"]
            body, end = self.nodes()
            self._variables = outer
            self._depth -= 1
            if end is None or end[0] != "end":
                raise ChatError(f"the template is not valid, line {line}: {{{{{keyword}}}}} has no end")
            self.template.defined[name.value] = body
        return None if keyword == "define" else Invoke(name.value, pipe, line)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.wrong(f"more than {MAX_DEPTH} actions stand inside of each other")

    def function(self, name: str) -> Expression:
        if name in CONSTANTS:
            return Constant(CONSTANTS[name])
        if not self._knows(name):
            raise self.wrong(f"there is no function {name!r}")
        return Function(name)


class _Words:
    """The tokens of one action, read from left to right."""

    def __init__(self, action: ActionTokens, parser: _Parser) -> None:
        self._tokens = action.tokens
        self._at = 0
        self._depth = 0
        self._parser = parser

    def at_end(self) -> bool:
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else Token("end of the action", "", False)

    def next(self) -> Token:
        token = self.peek()
        self._at += 1
        return token

    def keyword(self) -> str:
        return str(self.peek().value) if self.peek().kind == "word" else ""

    def done(self) -> None:
        if not self.at_end():
            raise self._parser.wrong(f"{self.peek().value!r} cannot stand there")

    def pipe(self, known: list[str], *, in_range: bool = False) -> Pipe:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._parser.wrong(f"more than {MAX_DEPTH} parentheses stand inside of each other")
        variables, assigns = self._declared(in_range=in_range)
        commands = [self._command(known)]
        while self.peek().kind == "|":
            self.next()
            commands.append(self._command(known))
        for name in variables:
            if assigns and name not in known:
                raise self._parser.wrong(f"there is no variable {name}")
        if not assigns:
            known.extend(variables)
        self._depth -= 1
        return Pipe(tuple(commands), variables, assigns)

    def _declared(self, *, in_range: bool) -> tuple[tuple[str, ...], bool]:
        if self.peek().kind != "variable":
            return (), False
        if self.peek(1).kind in (":=", "="):
            name, sign = self.next(), self.next()
            return (str(name.value),), sign.kind == "="
        if in_range and self.peek(1).kind == "," and self.peek(2).kind == "variable":
            first, _, second, sign = self.next(), self.next(), self.next(), self.next()
            if sign.kind not in (":=", "="):
                raise self._parser.wrong("two variables of a range are followed by :=")
            return (str(first.value), str(second.value)), sign.kind == "="
        return (), False

    def _command(self, known: list[str]) -> PipeCommand:
        words: list[Expression] = []
        while not self.at_end() and self.peek().kind not in ("|", ")"):
            words.append(self._operand(known))
        if not words:
            raise self._parser.wrong("a value is missing")
        return PipeCommand(tuple(words))

    def _operand(self, known: list[str]) -> Expression:
        token = self.next()
        if token.kind == "constant":
            return Constant(token.value)
        if token.kind == "word":
            return self._parser.function(str(token.value))
        if token.kind == "field":
            return Field((str(token.value), *self._fields()))
        if token.kind == ".":
            return Field(())
        if token.kind == "variable":
            if token.value not in known:
                raise self._parser.wrong(f"there is no variable {token.value}")
            return Variable(str(token.value), self._fields())
        if token.kind == "(":
            pipe = self.pipe(known)
            if self.next().kind != ")":
                raise self._parser.wrong("a ( is not closed")
            return Chain(pipe, self._fields())
        raise self._parser.wrong(f"{token.value!r} cannot stand there")

    def _fields(self) -> tuple[str, ...]:
        texts = []
        while self.peek().kind == "field" and not self.peek().spaced:
            texts.append(str(self.next().value))
        return tuple(texts)
