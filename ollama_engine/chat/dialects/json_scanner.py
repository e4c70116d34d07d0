"""JsonScanner: follows one JSON value (RFC 8259) through chunks of text, checking it on the way.

One leniency: control characters inside strings, which models write when they write code, come out escaped. Everything
else that is not JSON is a problem, found at the first character that cannot be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ollama_engine.chat.dialects.scanner import ENDS, MalformedError, Reading, Scanner

__all__ = ["MAX_DEPTH", "JsonScanner", "StringDecoder", "parse_object", "read_string"]

MAX_DEPTH = 100
"""How deep arrays and objects may lie in each other. Python's own reader raises RecursionError at about a thousand."""

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_DIGITS = re.compile(r"[0-9]*")

_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u])))*"
)

# What the next character may be.
_VALUE, _FIRST_ITEM, _FIRST_KEY, _KEY, _COLON, _BEHIND = range(6)
_STRING, _ESCAPE, _UNICODE, _LITERAL = range(6, 10)
_MINUS, _ZERO, _INTEGER, _POINT, _FRACTION, _EXPONENT, _SIGN, _POWER = range(10, 18)

_EXPECTED = {
    _VALUE: "a value",
    _FIRST_ITEM: "a value or ']'",
    _FIRST_KEY: "a key in quotes or '}'",
    _KEY: "a key in quotes",
    _COLON: "':'",
}
_NUMBER_STEPS = {
    _MINUS: {"0": _ZERO, "d": _INTEGER},
    _ZERO: {".": _POINT, "e": _EXPONENT},
    _INTEGER: {"0": _INTEGER, "d": _INTEGER, ".": _POINT, "e": _EXPONENT},
    _POINT: {"0": _FRACTION, "d": _FRACTION},
    _FRACTION: {"0": _FRACTION, "d": _FRACTION, "e": _EXPONENT},
    _EXPONENT: {"0": _POWER, "d": _POWER, "s": _SIGN},
    _SIGN: {"0": _POWER, "d": _POWER},
    _POWER: {"0": _POWER, "d": _POWER},
}
_NUMBER_CLASS = {"0": "0", ".": ".", "e": "e", "E": "e", "+": "s", "-": "s"} | dict.fromkeys("123456789", "d")
_LONG_RUNS = (_INTEGER, _FRACTION, _POWER)
_NUMBER_ENDS = (_ZERO, _INTEGER, _FRACTION, _POWER)
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}


class JsonScanner:
    """A `ValueScanner` of one JSON value.

    Attributes:
        done: the value is complete; what follows has not been read.
        problem: why it is not JSON, or None.
    """

    def __init__(self) -> None:
        self.done = False
        self.problem: str | None = None
        self._state = _VALUE
        self._open: list[str] = []
        self._string_is_key = False
        self._left = ""  # of a literal: the letters to come; of \uXXXX: the digits so far

    def scan(self, text: str, at: int) -> tuple[int, str]:
        """Read from `at` on; where it stopped, and the JSON read."""
        start = at
        pieces: list[str] = []
        while at < len(text) and not self.done and self.problem is None:
            if self._state == _STRING:
                at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]  # matches nothing at least
                if at < len(text):
                    if text[at] < " ":
                        pieces += (text[start:at], json.dumps(text[at])[1:-1])
                        at = start = at + 1
                    else:
                        self._in_string(text[at])
                        at += 1
            elif self._state in (_ESCAPE, _UNICODE):
                at += self._in_escape(text[at])
            elif self._state == _LITERAL:
                at += self._in_literal(text[at])
            elif self._state >= _MINUS:
                at = self._in_number(text, at)
            else:
                at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
                if at < len(text):
                    at += self._structure(text[at])
        pieces.append(text[start:at])
        return at, "".join(pieces)

    def close(self) -> None:
        """No more text comes: a number is complete where it may end."""
        if not self._open and self._state in _NUMBER_ENDS:
            self.done = True

    def _in_string(self, character: str) -> None:
        if character == "\\":
            self._state = _ESCAPE
        elif self._string_is_key:
            self._state = _COLON
        else:
            self._complete()

    def _in_escape(self, character: str) -> int:
        if self._state == _ESCAPE:
            if character == "u":
                self._state, self._left = _UNICODE, ""
                return 1
            if character in '"\\/bfnrt':
                self._state = _STRING
                return 1
            return self._fail(f"a backslash and {character!r} in a string")
        if character not in "0123456789abcdefABCDEF":
            return self._fail(f"expected four hexadecimal digits behind \\u, got {character!r}")
        self._left += character
        if len(self._left) == 4:
            self._state = _STRING
        return 1

    def _in_literal(self, character: str) -> int:
        if character != self._left[0]:
            return self._fail(f"expected true, false or null, got {character!r} in it")
        self._left = self._left[1:]
        if not self._left:
            self._complete()
        return 1

    def _in_number(self, text: str, at: int) -> int:
        if self._state in _LONG_RUNS:
            at = _DIGITS.match(text, at).end()  # type: ignore[union-attr]
            if at == len(text):
                return at
        step = _NUMBER_STEPS[self._state].get(_NUMBER_CLASS.get(text[at], ""))
        if step is not None:
            self._state = step
            return at + 1
        if self._state in _NUMBER_ENDS:
            self._complete()
        else:
            self._fail(f"expected a digit, got {text[at]!r}")
        return at

    def _structure(self, character: str) -> int:
        state = self._state
        if state == _BEHIND:
            return self._behind(character)
        if state == _COLON and character == ":":
            self._state = _VALUE
        elif state in (_FIRST_KEY, _KEY) and character == '"':
            self._state, self._string_is_key = _STRING, True
        elif (state == _FIRST_KEY and character == "}") or (state == _FIRST_ITEM and character == "]"):
            self._open.pop()
            self._complete()
        elif state in (_VALUE, _FIRST_ITEM):
            return self._begin_value(character)
        else:
            return self._fail(f"expected {_EXPECTED[state]}, got {character!r}")
        return 1

    def _begin_value(self, character: str) -> int:
        if character == '"':
            self._state, self._string_is_key = _STRING, False
        elif character in "{[":
            if len(self._open) == MAX_DEPTH:
                return self._fail(f"more than {MAX_DEPTH} arrays and objects in each other")
            self._open.append(character)
            self._state = _FIRST_KEY if character == "{" else _FIRST_ITEM
        elif character in _LITERALS:
            self._state, self._left = _LITERAL, _LITERALS[character]
        elif character == "-":
            self._state = _MINUS
        elif character in "0123456789":
            self._state = _ZERO if character == "0" else _INTEGER
        else:
            return self._fail(f"expected {_EXPECTED[self._state]}, got {character!r}")
        return 1

    def _behind(self, character: str) -> int:
        inside = self._open[-1]
        if character == ",":
            self._state = _KEY if inside == "{" else _VALUE
        elif character == ("}" if inside == "{" else "]"):
            self._open.pop()
            self._complete()
        else:
            return self._fail(f"expected ',' or {'}' if inside == '{' else ']'!r}, got {character!r}")
        return 1

    def _complete(self) -> None:
        self._state = _BEHIND
        self.done = not self._open

    def _fail(self, problem: str) -> int:
        self.problem = problem
        return 0


class StringDecoder:
    """Decodes a JSON string that comes in pieces, quotes included; checked by a `JsonScanner` before."""

    def __init__(self) -> None:
        self._left = ""
        self._inside = False

    def decode(self, piece: str) -> str:
        """The text that this piece completes; an escape that is cut waits, half a surrogate pair included."""
        if not self._inside and piece:
            self._inside, piece = True, piece[1:]
        text = self._left + piece
        end = _WHOLE.match(text).end()  # type: ignore[union-attr]
        self._left = text[end:]
        decoded: str = json.loads(f'"{text[:end]}"')
        return decoded


def read_string(answer: Scanner) -> Reading[str]:
    """Read a JSON string, or it is malformed."""
    character = yield from answer.peek()
    if character != '"':
        raise MalformedError(f"expected a string, got {character!r}" if character else ENDS)
    pieces: list[str] = []
    yield from answer.value(JsonScanner(), pieces.append)
    text: str = json.loads("".join(pieces))
    return text


def parse_object(text: str) -> Mapping[str, Any]:
    """The object that checked JSON text stands for; a key that comes twice is malformed, at any depth."""
    try:
        value = json.loads(text, object_pairs_hook=_once_each)
    except ValueError as problem:  # an integer longer than Python reads
        raise MalformedError(f"the arguments cannot be read: {problem}") from None
    if not isinstance(value, dict):
        raise MalformedError(f"expected an object of arguments, got {text[:20]!r}")
    return value


def _once_each(members: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(members)
    if len(fields) != len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedError(f"the key {twice!r} comes twice")
    return fields
