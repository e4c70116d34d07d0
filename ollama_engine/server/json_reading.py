"""Reads JSON from anybody: bounded in depth and number of values, and while it reads, other threads run.

`json.loads` holds Python's lock for the whole of a text, whatever thread it is called in. Here Python code walks
through arrays and objects, and leaves texts and numbers to the standard library.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ollama_engine.errors import ConfigError

__all__ = ["AT_ONCE", "DEEPEST", "MOST_VALUES", "read_json"]

AT_ONCE = 1 << 16
"""Bytes that are read by `json.loads`, with Python's lock held for about a millisecond."""
DEEPEST = 200
"""Arrays and objects inside each other. What looks at a value by recursion (pydantic, json.dumps) takes no more."""
MOST_VALUES = 1 << 18
"""Values of one text, names of fields not counted. Checking them against a body's types holds Python's lock."""

_scalar = json.JSONDecoder().raw_decode
_skip = re.compile(r"[ \t\n\r]*").match


def read_json(data: bytes) -> Any:
    """The value of a JSON text in UTF-8, as `json.loads` reads it.

    Raises JSONDecodeError as `json.loads` does, and ConfigError for what is no UTF-8, is nested too deeply, or has too
    many values: these say at which byte, character or value.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"invalid JSON: byte {error.start} is 0x{data[error.start]:02x}, which is not UTF-8 there; encode the body "
            "as UTF-8"
        ) from None
    try:
        if len(data) <= AT_ONCE and data.count(b"[") + data.count(b"{") <= DEEPEST:
            return json.loads(text)
        return _Reading(text).value()
    except (json.JSONDecodeError, ConfigError):
        raise
    except ValueError as error:  # Python reads no integers of thousands of digits
        raise ConfigError(f"invalid JSON: {error}") from None


class _Reading:
    """One text, and the arrays and objects that are open where it is read."""

    def __init__(self, text: str) -> None:
        self._text = text
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
        if self._at < len(self._text):
            raise json.JSONDecodeError("Extra data", self._text, self._at)
        return value

    def _begin(self) -> Any:
        """Read a value, up to where the first value inside of it ends: that one is returned, or an empty container."""
        while True:
            self._n_values += 1
            if self._n_values > MOST_VALUES:
                raise ConfigError(f"the JSON has more than {MOST_VALUES} values; send less at a time")
            begins = self._text[self._at : self._at + 1]
            if begins not in ("[", "{"):
                return self._scalar()
            closes = "]" if begins == "[" else "}"
            made: list[Any] | dict[str, Any] = [] if begins == "[" else {}
            self._at = self._past_space(self._at + 1)
            if self._text.startswith(closes, self._at):
                self._at = self._past_space(self._at + 1)
                return made
            if len(self._open) == DEEPEST:
                raise ConfigError(
                    f"the JSON is nested more than {DEEPEST} times at character {self._at}; make it flatter"
                )
            self._open.append(made)
            if begins == "{":
                self._names.append(self._name())

    def _more(self, value: Any) -> bool:
        """Put a value into the innermost container; whether another one follows there."""
        text, container = self._text, self._open[-1]
        if isinstance(container, dict):
            container[self._names[-1]] = value
        else:
            container.append(value)
        closes = "}" if isinstance(container, dict) else "]"
        if text.startswith(closes, self._at):
            self._at = self._past_space(self._at + 1)
            return False
        if not text.startswith(",", self._at):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, self._at)
        self._at = self._past_space(self._at + 1)
        if isinstance(container, dict):
            self._names[-1] = self._name()
        return True

    def _name(self) -> str:
        if not self._text.startswith('"', self._at):
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", self._text, self._at)
        name: str = self._scalar()
        if not self._text.startswith(":", self._at):
            raise json.JSONDecodeError("Expecting ':' delimiter", self._text, self._at)
        self._at = self._past_space(self._at + 1)
        return name

    def _scalar(self) -> Any:
        value, end = _scalar(self._text, self._at)
        self._at = self._past_space(end)
        return value

    def _past_space(self, at: int) -> int:
        if self._text[at : at + 1] not in " \t\n\r":
            return at
        found = _skip(self._text, at)
        return found.end() if found else at
