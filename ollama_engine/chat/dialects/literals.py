"""Values that are no JSON: Python's literals and their like, read as JSON text while they stream."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ollama_engine.chat.dialects.json_scanner import MAX_DEPTH
from ollama_engine.chat.dialects.scanner import ENDS, MalformedError, Reading, Scanner, Sink, markers

__all__ = ["PYTHON", "Literals", "escaped"]

_TOKEN = re.compile(r"[\w.+\-]+")
_BARE_KEY = re.compile(r"[^\s:,<>{}\[\]\"]+")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def escaped(text: str) -> str:
    """Text as it stands inside of a JSON string; pieces may be escaped one by one."""
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", written)


@dataclass(frozen=True)
class Literals:
    """How values are written.

    quotes: what strings stand between, any order.
    escapes: whether a backslash begins an escape in them.
    bare_keys: whether keys of objects stand without quotes.
    """

    quotes: Sequence[str] = ('"""', "'''", '"', "'")
    escapes: bool = True
    bare_keys: bool = False

    def read(self, answer: Scanner, sink: Sink, depth: int = 0) -> Reading[None]:
        """Read a value and pass it on as JSON, or it is malformed."""
        if depth > MAX_DEPTH:
            raise MalformedError(f"more than {MAX_DEPTH} arrays and objects in each other")
        quote = yield from answer.accept(*self.quotes)
        if quote is not None:
            yield from self._string(answer, sink, quote)
        elif (yield from answer.accept("[")):
            yield from _listed(answer, sink, "[]", lambda: self.read(answer, sink, depth + 1))
        elif (yield from answer.accept("{")):
            yield from _listed(answer, sink, "{}", lambda: self._member(answer, sink, depth + 1))
        else:
            sink(_scalar((yield from answer.run(_TOKEN)), (yield from answer.peek())))

    def _string(self, answer: Scanner, sink: Sink, quote: str) -> Reading[None]:
        ends = markers(quote, "\\", line_breaks=0) if self.escapes else markers(quote, line_breaks=0)
        sink('"')
        while (end := (yield from answer.until(ends, lambda text: sink(escaped(text))))) != quote:
            if end is None:
                raise MalformedError("the answer ends inside a string")
            sink(escaped((yield from _escape(answer))))
        sink('"')

    def _member(self, answer: Scanner, sink: Sink, depth: int) -> Reading[None]:
        yield from self._key(answer, sink)
        yield from answer.skip_space()
        yield from answer.expect(":")
        yield from answer.skip_space()
        sink(": ")
        yield from self.read(answer, sink, depth)

    def _key(self, answer: Scanner, sink: Sink) -> Reading[None]:
        quote = yield from answer.accept(*self.quotes)
        if quote is not None:
            yield from self._string(answer, sink, quote)
        elif self.bare_keys:
            key = yield from answer.run(_BARE_KEY)
            if not key:
                raise MalformedError(f"expected a key, got {(yield from answer.peek())!r}")
            sink(f'"{escaped(key)}"')
        else:
            raise MalformedError(f"expected a key in quotes, got {(yield from answer.peek())!r}")


PYTHON = Literals()
"""Strings in single, double or triple quotes, True, False, None; JSON's words and numbers too."""


def _listed(answer: Scanner, sink: Sink, brackets: str, read: Callable[[], Reading[None]]) -> Reading[None]:
    """Read what follows the first of two brackets, and the second; `read` reads an item."""
    begin, close = brackets[0], brackets[1]
    sink(begin)
    yield from answer.skip_space()
    end = yield from answer.accept(close)
    while end != close:
        yield from read()
        end = yield from _behind(answer, sink, close)
    sink(close)


def _behind(answer: Scanner, sink: Sink, close: str) -> Reading[str]:
    """Read what follows an item; a comma before the bracket is nothing."""
    yield from answer.skip_space()
    end = yield from answer.expect(",", close)
    if end == ",":
        yield from answer.skip_space()
        if (yield from answer.accept(close)):
            return close
        sink(", ")
    return end


def _escape(answer: Scanner) -> Reading[str]:
    """Read what follows a backslash."""
    character = yield from answer.characters(1)
    if character in _HEX_DIGITS:
        digits = yield from answer.characters(_HEX_DIGITS[character])
        if len(digits) != _HEX_DIGITS[character] or not re.fullmatch("[0-9a-fA-F]+", digits):
            raise MalformedError(f"expected {_HEX_DIGITS[character]} hexadecimal digits behind \\{character}")
        number = int(digits, 16)
        if number > 0x10FFFF:
            raise MalformedError(f"there is no character \\U{digits}")
        return chr(number)
    # As Python does, a backslash that begins no escape stands for itself.
    # JSON's escape of a slash is understood.
    return _ESCAPES.get(character, character if character in "\\'\"/" else "\\" + character)


def _scalar(token: str, following: str) -> str:
    """The JSON of a number or a word."""
    if token in _WORDS:
        return _WORDS[token]
    if _JSON_NUMBER.fullmatch(token):
        return token
    try:
        number = float(token) if "." in token else int(token, 0)
        if abs(number) != float("inf"):
            return json.dumps(number)
    except ValueError:
        pass
    raise MalformedError(f"expected a value, got {token[:20] or following!r}" if token or following else ENDS)
