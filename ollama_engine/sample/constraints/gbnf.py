"""GBNF, llama.cpp's notation for grammars, read into expressions.

Syntax: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md. A rule ends at a line break outside of
parentheses, unless the next line begins with `|`.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from ollama_engine.errors import GrammarError

__all__ = [
    "ANY",
    "Alternatives",
    "Characters",
    "Concatenation",
    "Expression",
    "GrammarToken",
    "Reference",
    "Repeat",
    "read_rules",
]

MOST_PARTS = 20_000
"""Words, signs and characters of texts and sets. Grammars for programming languages have some thousand."""
MOST_REPEATS = 2000
MAX_DEPTH = 100
"""Parentheses within parentheses."""


class Characters(NamedTuple):
    """One character of these ranges (first, last), which are sorted and apart."""

    ranges: tuple[tuple[int, int], ...]


class Reference(NamedTuple):
    """Another rule."""

    rule: str


class GrammarToken(NamedTuple):
    """A control token, as Lark writes it: `<name>` or `<[id]>`."""

    name: str


class Concatenation(NamedTuple):
    """One after the other; nothing where there are none."""

    parts: tuple[Expression, ...]


class Alternatives(NamedTuple):
    """Any one of these."""

    choices: tuple[Expression, ...]


class Repeat(NamedTuple):
    """`low` to `high` times; None: any number."""

    inner: Expression
    low: int
    high: int | None


Expression: TypeAlias = "Characters | Reference | GrammarToken | Concatenation | Alternatives | Repeat"

LAST = 0x10FFFF
ANY = Characters(((0, 0xD7FF), (0xE000, LAST)))
"""Any character; surrogates are none."""

_PIECE = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)|(?P<newline>\n)|(?P<name>[A-Za-z0-9-]+)|(?P<define>::=)
    |(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<set>\[\^?(?:[^\]\\]|\\.)*\])|(?P<token>!?<\[?[^<>\s]+?\]?>)|(?P<count>\{[^}]*\})|(?P<sign>[.|()*+?])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|([^\\])", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^", "/": "/"}
_COUNT = re.compile(r"\{\s*(\d+)\s*(,\s*(\d*)\s*)?\}")


class _Piece(NamedTuple):
    kind: str
    text: str
    at: int


def read_rules(grammar: str) -> dict[str, Expression]:
    """All rules by name. Raises GrammarError with the line of what cannot be read."""
    return _Reader(grammar).rules()


class _Reader:
    """Recursive descent over the pieces of a grammar."""

    def __init__(self, grammar: str) -> None:
        self._grammar = grammar
        self._parts_left = MOST_PARTS
        self._pieces = self._split()
        self._at = 0
        self._depth = 0

    def _split(self) -> list[_Piece]:
        pieces, at = [], 0
        while at < len(self._grammar):
            match = _PIECE.match(self._grammar, at)
            if match is None:
                raise self._error("cannot be read", at)
            if match.lastgroup != "space":
                self._count_parts(1, at)
                pieces.append(_Piece(str(match.lastgroup), match[0], at))
            at = match.end()
        return [*pieces, _Piece("newline", "\n", at), _Piece("end", "", at)]

    def _count_parts(self, n: int, at: int) -> None:
        self._parts_left -= n
        if self._parts_left < 0:
            raise self._error(f"more than {MOST_PARTS} words, signs and characters; write it shorter, or as Lark", at)

    def _error(self, what: str, at: int) -> GrammarError:
        line = self._grammar.count("\n", 0, at) + 1
        begin = self._grammar.rfind("\n", 0, at) + 1
        shown = self._grammar[begin:].split("\n", 1)[0][:80]
        return GrammarError(f"the GBNF grammar cannot be used: line {line}, column {at - begin + 1}, {shown!r}: {what}")

    @property
    def _next(self) -> _Piece:
        return self._pieces[self._at]

    def _take(self, kind: str, text: str | None = None) -> bool:
        if self._next.kind != kind or (text is not None and self._next.text != text):
            return False
        self._at += 1
        return True

    def _expect(self, kind: str, what: str) -> _Piece:
        piece = self._next
        if not self._take(kind):
            raise self._error(f"expected {what}, got {piece.text!r}", piece.at)
        return piece

    def _skip_newlines(self) -> None:
        while self._take("newline"):
            pass

    def rules(self) -> dict[str, Expression]:
        """All of them."""
        rules: dict[str, Expression] = {}
        self._skip_newlines()
        while self._next.kind != "end":
            name = self._expect("name", "the name of a rule")
            if name.text in rules:
                raise self._error(f"rule {name.text} is there twice", name.at)
            self._expect("define", "::=")
            self._skip_newlines()
            rules[name.text] = self._alternatives()
            self._expect("newline", "the end of the rule")
            self._skip_newlines()
        self._check_references(rules)
        return rules

    def _check_references(self, rules: dict[str, Expression]) -> None:
        if "root" not in rules:
            raise self._error("there is no rule `root`", len(self._grammar))
        for i, piece in enumerate(self._pieces):
            if piece.kind == "name" and piece.text not in rules and self._pieces[i + 1].kind != "define":
                raise self._error(f"there is no rule {piece.text}", piece.at)

    def _alternatives(self) -> Expression:
        choices = [self._sequence()]
        while self._goes_on():
            self._skip_newlines()
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else Alternatives(tuple(choices))

    def _goes_on(self) -> bool:
        """Whether another alternative follows, here or on the next line."""
        begin = self._at
        self._skip_newlines()
        if self._take("sign", "|"):
            return True
        self._at = begin
        return False

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while True:
            if self._depth:
                self._skip_newlines()
            part = self._part()
            if part is None:
                return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))
            parts.append(self._repeated(part))

    def _part(self) -> Expression | None:
        piece = self._next
        if piece.kind == "name" and self._pieces[self._at + 1].kind == "define":
            return None
        if piece.kind in ("text", "set") or piece.text == ".":
            self._at += 1
            return self._characters(piece)
        if self._take("name"):
            return Reference(piece.text)
        if self._take("token"):
            return self._token(piece)
        return self._group(piece) if self._take("sign", "(") else None

    def _characters(self, piece: _Piece) -> Expression:
        if piece.kind == "text":
            codes = self._codes(piece.text[1:-1], piece.at)
            return Concatenation(tuple(Characters(((code, code),)) for code, _ in codes))
        return self._set(piece) if piece.kind == "set" else ANY

    def _token(self, piece: _Piece) -> GrammarToken:
        if piece.text.startswith("!"):
            raise self._error("any token but one is not supported", piece.at)
        return GrammarToken(piece.text)

    def _group(self, piece: _Piece) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"parentheses are nested more than {MAX_DEPTH} deep", piece.at)
        inner = self._alternatives()
        self._skip_newlines()
        if not self._take("sign", ")"):
            raise self._error("the parenthesis is not closed", piece.at)
        self._depth -= 1
        return inner

    def _repeated(self, part: Expression) -> Expression:
        while True:
            piece = self._next
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(piece.text) if piece.kind == "sign" else None
            if bounds is None and piece.kind == "count":
                bounds = self._bounds(piece)
            if bounds is None:
                return part
            self._at += 1
            part = Repeat(part, *bounds)

    def _bounds(self, piece: _Piece) -> tuple[int, int | None]:
        match = _COUNT.fullmatch(piece.text)
        if match is None:
            raise self._error("expected {number}, {number,} or {number,number}", piece.at)
        low = int(match[1])
        high = low if match[2] is None else int(match[3]) if match[3] else None
        if max(low, high or 0) > MOST_REPEATS or (high is not None and high < low):
            raise self._error(f"counts are 0 to {MOST_REPEATS}, the lower one first", piece.at)
        return low, high

    def _codes(self, text: str, at: int) -> list[tuple[int, bool]]:
        """Code points, and whether each was written as it is."""
        codes: list[tuple[int, bool]] = []
        self._count_parts(len(text), at)
        for match in _ESCAPE.finditer(text):
            number = match[1] or match[2] or match[3]
            if number is None and match[5] is None and match[4] not in _PLAIN:
                raise self._error(f"unknown escape \\{match[4]}", at)
            code = int(number, 16) if number else ord(match[5] or _PLAIN[match[4]])
            if code > LAST or 0xD800 <= code <= 0xDFFF:
                raise self._error(f"U+{code:X} is no character", at)
            codes.append((code, match[5] is not None))
        return codes

    def _set(self, piece: _Piece) -> Characters:
        negated = piece.text.startswith("[^")
        codes = self._codes(piece.text[2 if negated else 1 : -1], piece.at)
        ranges, i = [], 0
        while i < len(codes):
            low = high = codes[i][0]
            if i + 2 < len(codes) and codes[i + 1] == (ord("-"), True):
                high = codes[i + 2][0]
                i += 2
            if high < low:
                raise self._error("a range goes from the lower character to the higher one", piece.at)
            ranges.append((low, high))
            i += 1
        merged = _merged(ranges)
        return _complement(merged) if negated else Characters(merged)


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: tuple[tuple[int, int], ...]) -> Characters:
    gaps = []
    for first, last in ANY.ranges:
        at = first
        for low, high in ranges:
            if high >= at and low <= last:
                if low > at:
                    gaps.append((at, low - 1))
                at = max(at, high + 1)
        if at <= last:
            gaps.append((at, last))
    return Characters(tuple(gaps))
