"""Lines that somebody types where a program asks with `input`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest


def type_lines(monkeypatch: pytest.MonkeyPatch, lines: Iterable[str | BaseException]) -> Iterator[str | BaseException]:
    """Have `input` return these in turn, raise those that are errors, and end behind the last. What is left of them."""
    waiting = iter(lines)

    def read(prompt: str = "") -> str:
        line = next(waiting, None)
        if line is None:
            raise EOFError
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    return waiting
