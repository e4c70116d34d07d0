"""Reads JSON from anybody: bounded in depth and number of values, and while it reads, other threads run.

`json.loads` holds Python's lock for the whole of a text, whatever thread it is called in. Here Python code walks
through arrays and objects, and long texts are decoded piece by piece; the standard library reads the pieces.
"""

from __future__ import annotations

import json
import math
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # the stubs lack it
from typing import Any

from ollama_engine.errors import ConfigError
from ollama_engine.tokenizer._texts import join_texts

__all__ = ["AT_ONCE", "DEEPEST", "MOST_VALUES", "read_json"]

AT_ONCE = 1 << 16
"""Bytes that are read by `json.loads`, with Python's lock held for about a millisecond."""
DEEPEST = 200
"""Arrays and objects inside each other. What looks at a value by recursion (pydantic, json.dumps) takes no more."""
MOST_VALUES = 1 << 18
"""Values of one text, names of fields not counted. Checking them against a body's types holds Python's lock."""
FIRST_PIECE, LARGEST_PIECE = 1 << 8, 1 << 16
"""Bytes of a text that are decoded at once: first few, as most texts are short, then twice as many each time."""
LONGEST_NUMBER = 1 << 13
"""Bytes of a number, or of a word such as `true`. Python reads integers of 4,300 digits."""

_scalar = json.JSONDecoder().raw_decode
_skip = re.compile(rb"[ \t\n\r]*").match
_numbers = re.compile(rb"(?:-?(?:0|[1-9][0-9]{0,14})[ \t\n\r]*,[ \t\n\r]*){8,4096}").match
_word = re.compile(rb"[-+.0-9A-Za-z]*").match
_IN_CHARACTER = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 with which no character begins."""


def read_json(data: bytes, *, trusted: bool = False) -> Any:
    """The value of a JSON text in UTF-8, as `json.loads` reads it; a `trusted` one has no bounds.

    Raises JSONDecodeError as `json.loads` does, and ConfigError for what is no UTF-8, is nested too deeply, or has too
    many values: these say at which byte, character or value.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        if len(data) <= AT_ONCE and data.count(b"[") + data.count(b"{") <= DEEPEST:
            return json.loads(_decoded(data, 0, len(data)))
        return (_TrustedReading if trusted else _Reading)(data).value()
    except (json.JSONDecodeError, ConfigError):
        raise
    except ValueError as error:  # Python reads no integers of thousands of digits
        raise ConfigError(f"invalid JSON: {error}") from None


def _decoded(data: bytes, begin: int, end: int) -> str:
    """The text in these bytes. Raises ConfigError, which says where they are no UTF-8."""
    try:
        return data[begin:end].decode()
    except UnicodeDecodeError as error:
        at = begin + error.start
        raise ConfigError(
            f"invalid JSON: byte {at} is 0x{data[at]:02x}, which is not UTF-8 there; encode the body as UTF-8"
        ) from None


class _Reading:
    """One text, and the arrays and objects that are open where it is read."""

    deepest: float = DEEPEST
    most_values: float = MOST_VALUES

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = self._past_space(0)
        self._open: list[list[Any] | dict[str, Any]] = []
        self._names: list[str] = []
        """Of the fields whose values are being read, one for each open object."""
        self._n_values = 0

    def value(self) -> Any:
        """The whole text's value."""
        value = self._begin()
        while self._open:
            if self._more(value):
                value = self._begin()
            else:
                value = self._open.pop()
                if isinstance(value, dict):
                    self._names.pop()
        if self._at < len(self._data):
            raise self._fault("Extra data", self._at)
        return value

    def _begin(self) -> Any:
        """Read a value, up to where the first value inside of it ends: that one is returned, or an empty container."""
        while True:
            self._n_values += 1
            if self._n_values > self.most_values:
                raise ConfigError(f"the JSON has more than {self.most_values} values; send less at a time")
            if self._open and isinstance(self._open[-1], list) and self._took_run(self._open[-1]):
                continue
            begins = self._data[self._at : self._at + 1]
            if begins not in (b"[", b"{"):
                return self._text() if begins == b'"' else self._word()
            closes = b"]" if begins == b"[" else b"}"
            made: list[Any] | dict[str, Any] = [] if begins == b"[" else {}
            self._at = self._past_space(self._at + 1)
            if self._data.startswith(closes, self._at):
                self._at = self._past_space(self._at + 1)
                return made
            if len(self._open) == self.deepest:
                place = self._characters(self._at)
                raise ConfigError(
                    f"the JSON is nested more than {self.deepest} times at character {place}; make it flatter"
                )
            self._open.append(made)
            if begins == b"{":
                self._names.append(self._name())

    def _took_run(self, container: list[Any]) -> bool:
        """Read a run of integers, such as token ids, all at once; the next value follows."""
        run = _numbers(self._data, self._at, self._at + LARGEST_PIECE)
        if run is None:
            return False
        numbers = json.loads(f"[{run.group().decode('ascii').rstrip()[:-1]}]")
        container += numbers
        self._n_values += len(numbers) - 1  # one was counted
        self._at = run.end()
        return True

    def _more(self, value: Any) -> bool:
        """Put a value into the innermost container; whether another one follows there."""
        data, container = self._data, self._open[-1]
        if isinstance(container, dict):
            container[self._names[-1]] = value
        else:
            container.append(value)
        closes = b"}" if isinstance(container, dict) else b"]"
        if data.startswith(closes, self._at):
            self._at = self._past_space(self._at + 1)
            return False
        if not data.startswith(b",", self._at):
            raise self._fault("Expecting ',' delimiter", self._at)
        self._at = self._past_space(self._at + 1)
        if isinstance(container, dict):
            self._names[-1] = self._name()
        return True

    def _name(self) -> str:
        if not self._data.startswith(b'"', self._at):
            raise self._fault("Expecting property name enclosed in double quotes", self._at)
        name = self._text()
        if not self._data.startswith(b":", self._at):
            raise self._fault("Expecting ':' delimiter", self._at)
        self._at = self._past_space(self._at + 1)
        return name

    def _word(self) -> Any:
        """A number, or a word."""
        found = _word(self._data, self._at, self._at + LONGEST_NUMBER)
        word = found.group() if found else b""
        if len(word) == LONGEST_NUMBER:
            at = self._characters(self._at)
            raise ConfigError(f"the JSON has a number of more than {LONGEST_NUMBER - 1} characters at character {at}")
        try:
            value, size = _scalar(word.decode("ascii"))
        except json.JSONDecodeError as error:
            raise self._fault(error.msg, self._at + error.pos) from None
        self._at = self._past_space(self._at + size)
        return value

    def _text(self) -> str:
        """The text whose quote is here."""
        pieces: list[str] = []
        begin, size, ended = self._at + 1, FIRST_PIECE, False
        while not ended:
            end = self._end_of_piece(begin, begin + size)
            piece = _decoded(self._data, begin, end)
            whole = end == len(self._data)  # what is missing there is for the standard library to say
            try:
                text, read = scanstring(f'"{piece}' if whole else f'"{piece}"', 1)
            except json.JSONDecodeError as error:
                if error.msg.startswith("Unterminated"):
                    raise self._fault(error.msg, self._at) from None
                raise self._fault(error.msg, begin + len(piece[: error.pos - 1].encode())) from None
            ended = read - 1 <= len(piece)
            if ended:
                end = begin + len(piece[: read - 1].encode())
            elif text[-1:] and "\ud800" <= text[-1] <= "\udbff":  # its other half is in the next piece
                text, end = text[:-1], end - len("\\ud800")
            pieces.append(text)
            begin, size = end, min(2 * size, LARGEST_PIECE)
        self._at = self._past_space(begin)
        return pieces[0] if len(pieces) == 1 else join_texts(pieces)

    def _end_of_piece(self, begin: int, end: int) -> int:
        """Where a piece of a text ends that may reach to `end`: behind its quote, or between characters and escapes."""
        data = self._data
        quote = data.find(b'"', begin, end)
        if quote >= 0 and data.find(b"\\", begin, quote) < 0:
            return quote + 1
        if end >= len(data):
            return len(data)
        end -= next((n for n in range(4) if data[end - n] & 0xC0 != 0x80), 0)
        escape = data.rfind(b"\\", end - len("\\u000"), end)
        if escape < 0 or (escape - begin - len(data[begin:escape].rstrip(b"\\"))) % 2:
            return end
        length = 6 if data[escape + 1 : escape + 2] == b"u" else 2
        return escape if escape + length > end else end

    def _past_space(self, at: int) -> int:
        while self._data[at : at + 1] in (b" ", b"\t", b"\n", b"\r"):
            found = _skip(self._data, at, at + LARGEST_PIECE)
            at = found.end() if found else at
        return at

    def _fault(self, message: str, at: int) -> json.JSONDecodeError:
        return json.JSONDecodeError(message, "", self._characters(at))

    def _characters(self, end: int) -> int:
        """Characters before a byte."""
        starts = range(0, end, LARGEST_PIECE)
        return sum(len(self._data[at : min(end, at + LARGEST_PIECE)].translate(None, _IN_CHARACTER)) for at in starts)


class _TrustedReading(_Reading):
    """A text that this program wrote, in ASCII: items of lists are read many at once, whatever they are."""

    deepest = math.inf
    most_values = math.inf

    def _took_run(self, container: list[Any]) -> bool:
        """Read the items that end within some bytes; the next one follows."""
        piece = self._data[self._at : self._at + LARGEST_PIECE]
        text, at = piece.decode("ascii") if piece.isascii() else "", 0
        while True:
            try:
                value, end = _scalar(text, at)
            except (json.JSONDecodeError, RecursionError):  # cut off, too deep, or wrong: it is read value by value
                break
            if text[end : end + 1] != ",":
                break
            container.append(value)
            at = end + 1 + (text[end + 1 : end + 2] == " ")
        self._at = self._past_space(self._at + at)
        return at > 0
