"""A template's source as literal texts and actions of tokens, white space trimmed as `{{-` and `-}}` ask."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from ollama_engine.errors import ChatError

__all__ = ["ActionTokens", "LiteralText", "Token", "split_source"]

WHITE = " \t\r\n"
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<char>'(?:[^'\\\n]|\\.)+')
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|(?:\d[\d_]*)?\.\d+(?:[eE][+-]?\d+)?|\d[\d_]*\.?(?:[eE][+-]?\d+)?))
    |(?P<declare>:=)
    |(?P<variable>\$\w*)
    |(?P<field>\.[^\W\d]\w*)
    |(?P<word>[^\W\d]\w*)
    |(?P<mark>[.|(),=])""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"\{\{(?:-[ \t\r\n])?/\*.*?\*/(?P<trim>[ \t\r\n]-)?\}\}", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "'": "'", '"': '"'}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)


class Token(NamedTuple):
    """One word of an action.

    Attributes:
        kind: "constant", "variable", "field", "word", or the mark itself: "." "|" "(" ")" "," "=" ":=".
        value: the constant; the name with its "$", or without its ".".
        spaced: whether white space stands before it, which tells `(a).b` from `(a) .b`.
    """

    kind: str
    value: object
    spaced: bool


class LiteralText(NamedTuple):
    """Text outside of actions, trimmed."""

    text: str


class ActionTokens(NamedTuple):
    """Tokens of an action, between {{ and }}."""

    tokens: list[Token]
    line: int


def split_source(source: str) -> Iterator[LiteralText | ActionTokens]:
    """The parts of a source, in their order; comments are left out. Raises ChatError for what no action can be."""
    at, trimming = 0, False
    while True:
        opens = source.find("{{", at)
        text = source[at:] if opens < 0 else source[at:opens]
        if trimming:
            text = text.lstrip(WHITE)
        if opens >= 0 and source[opens + 2 : opens + 3] == "-" and source[opens + 3 : opens + 4] in WHITE:
            text = text.rstrip(WHITE)
        if text:
            yield LiteralText(text)
        if opens < 0:
            return
        line = source.count("\n", 0, opens) + 1
        comment = _COMMENT.match(source, opens)
        if comment is not None:
            at, trimming = comment.end(), comment["trim"] is not None
            continue
        tokens, at, trimming = _action(source, opens, line)
        yield ActionTokens(tokens, line)


def _action(source: str, opens: int, line: int) -> tuple[list[Token], int, bool]:
    """The tokens of an action, the place behind it, and whether it trims what follows."""
    at = opens + 2
    if source[at : at + 1] == "-" and source[at + 1 : at + 2] in WHITE:
        at += 2
    tokens: list[Token] = []
    spaced = False
    while True:
        if source.startswith("}}", at):
            return tokens, at + 2, False
        if spaced and source.startswith("-}}", at):
            return tokens, at + 3, True
        match = _TOKEN.match(source, at)
        if match is None:
            rest = source[at : at + 20].split("\n", maxsplit=1)[0]
            what = "is not closed" if not rest else f"has {rest!r}, which cannot stand there"
            raise ChatError(f"the template is not valid, line {line}: an action {what}")
        at = match.end()
        if match.lastgroup == "space":
            spaced = True
        else:
            tokens.append(_token(str(match.lastgroup), match[0], spaced, line))
            spaced = False


def _token(kind: str, text: str, spaced: bool, line: int) -> Token:
    if kind in ("string", "raw", "char", "number"):
        return Token("constant", _constant(kind, text, line), spaced)
    if kind == "field":
        return Token("field", text[1:], spaced)
    return Token(kind if kind in ("variable", "word") else text, text, spaced)


def _constant(kind: str, text: str, line: int) -> str | int | float:
    if kind == "number":
        return _number(text, line)
    if kind == "raw":
        return text[1:-1]
    meant = unquoted(text[1:-1])
    if kind == "string":
        return meant
    if len(meant) != 1:
        raise ChatError(f"the template is not valid, line {line}: {text} is more than one character")
    return ord(meant)


def _number(text: str, line: int) -> int | float:
    plain = text.replace("_", "")
    figures = plain.lstrip("+-")
    try:
        if figures.isdigit() and (figures[0] != "0" or figures == "0"):
            return int(plain)
        return int(plain, 0) if figures[:2].lower() in ("0x", "0b", "0o") else _float_or_octal(plain, figures)
    except ValueError:
        raise ChatError(f"the template is not valid, line {line}: {text} is no number") from None


def _float_or_octal(plain: str, figures: str) -> int | float:
    return int(plain, 8) if figures.isdigit() else float(plain)


def unquoted(text: str) -> str:
    """A quoted Go string with its escapes resolved."""

    def meant(escape: re.Match[str]) -> str:
        hexadecimal = escape[1] or escape[2] or escape[3]
        if hexadecimal:
            return chr(int(hexadecimal, 16))
        if escape[4]:
            return chr(int(escape[4], 8))
        if escape[5] not in _ESCAPES:
            raise ChatError(f"the template is not valid: {json.dumps(escape[0])} is no escape")
        return _ESCAPES[escape[5]]

    return _ESCAPE.sub(meant, text)
