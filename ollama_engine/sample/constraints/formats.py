"""Values of the option `format`, which constrains an answer's form: Regex, Choice, Lark, GBNF."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ollama_engine.errors import ConfigError, Option

__all__ = ["FORMATS", "GBNF", "Choice", "Format", "Lark", "Regex", "ValueOrCalls"]

_SURROGATE = re.compile("[\ud800-\udfff]")

FORMATS = (
    '"json", a JSON schema (a dict, or its text), a pydantic model, dataclass, TypedDict or other type, '
    "or one of Regex, Choice, Lark and GBNF"
)
"""List of the formats, for messages."""


def _check_text(kind: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(Option("format"), f": {kind} takes a str, got {type(value).__name__}")
    if _has_surrogate(value):
        raise ConfigError(Option("format"), f": {kind} takes a text without lone surrogates, got {value!r:.60}")


def _has_surrogate(text: str) -> bool:
    """Whether it cannot be written in UTF-8: Python has such texts, models have not."""
    return _SURROGATE.search(text) is not None


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole answer matches a regular expression, in the syntax of Rust's regex crate.

    Look-around, back references and word boundaries are refused; `.` matches no line break, `(?s:.)` does. `parsed` is
    the text.
    """

    pattern: str

    def __post_init__(self) -> None:
        _check_text("Regex", self.pattern)


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer is one of these texts, as it stands. `parsed` is the text."""

    choices: tuple[str, ...]

    def __init__(self, choices: Iterable[str]) -> None:
        if isinstance(choices, (str, bytes)) or not isinstance(choices, Iterable):
            raise ConfigError(Option("format"), f": Choice takes a list of texts, got {choices!r:.60}")
        texts = tuple(choices)
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(Option("format"), f": Choice takes one or more texts, none empty, got {texts!r:.60}")
        if any(map(_has_surrogate, texts)):
            raise ConfigError(Option("format"), f": Choice takes texts without lone surrogates, got {texts!r:.60}")
        object.__setattr__(self, "choices", texts)


@dataclass(frozen=True, slots=True)
class Lark:
    """The answer follows a context-free grammar in llguidance's variant of Lark; `start` is where it begins.

    `%json {...}` stands for a JSON schema, `<name>` for a control token such as `<|tool_call|>`. `parsed` is the text.
    https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
    """

    grammar: str

    def __post_init__(self) -> None:
        _check_text("Lark", self.grammar)


@dataclass(frozen=True, slots=True)
class GBNF:
    """The answer follows a grammar in llama.cpp's notation; `root` is where it begins. `parsed` is the text."""

    grammar: str

    def __post_init__(self) -> None:
        _check_text("GBNF", self.grammar)


@dataclass(frozen=True, slots=True)
class ValueOrCalls:
    """A Lark grammar of answers that are calls of tools, or a value that `read` reads. Only chats make it."""

    grammar: str
    read: Callable[[str], object]


Format: TypeAlias = str | Mapping[str, Any] | type | Regex | Choice | Lark | GBNF
"""A value of the option `format`; types are those that pydantic makes a schema of."""
