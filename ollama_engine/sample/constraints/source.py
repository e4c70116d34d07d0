"""From a format to the grammar's text, as llguidance reads it, and to what reads an answer's value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ollama_engine.errors import ConfigError, GrammarError, Option
from ollama_engine.sample.constraints.formats import FORMATS, GBNF, Choice, Lark, Regex
from ollama_engine.sample.constraints.schema import checked_schema

__all__ = ["Source", "read_format", "schema_grammar"]

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
JSON_OPTIONS: Mapping[str, Any] = {
    # A space, or a line break with its indentation: with some models, more never ends.
    "whitespace_pattern": r" |\n[ \t]{0,32}",
    # Every text has one spelling: a name with escapes would pass as one that the schema does not list.
    "json_allowed_escapes": 'nrtbf"\\',
    "lenient": False,
    "coerce_one_of": False,
}


class Source(NamedTuple):
    """A grammar before it is compiled."""

    text: str
    """What the matcher is made of; equal texts are equal grammars."""
    read: Callable[[str], object]
    """A whole answer's value."""
    schema: Mapping[str, Any] | None = None
    """The JSON schema that it was made of."""


def read_format(given: object) -> Source:
    """The grammar that a format stands for. Raises ConfigError for what is none, GrammarError for what is wrong in it."""
    if isinstance(given, str):
        return _of_schema(_schema_of_text(given))
    if isinstance(given, Mapping):
        return _of_schema(given)
    if isinstance(given, Regex):
        return _of_lark(f"start: /{_slashed(given.pattern)}/")
    if isinstance(given, Choice):
        return _of_lark(f"start: {' | '.join(map(_quoted, given.choices))}")
    if isinstance(given, Lark):
        return _of_lark(given.grammar)
    raise _no_format(given)


def _no_format(given: object) -> ConfigError:
    return ConfigError(Option("format"), f" is {FORMATS}; got {given!r:.80}")


def _schema_of_text(text: str) -> Mapping[str, Any]:
    if text == "json":
        return ANY_OBJECT
    try:
        schema = json.loads(text)
    except ValueError:
        raise _no_format(text) from None
    if not isinstance(schema, dict):
        raise _no_format(text)
    return schema


def _of_schema(given: Mapping[str, Any]) -> Source:
    try:
        # What JSON makes of it: lists of tuples, and nothing but texts, numbers, lists and objects.
        plain = json.loads(json.dumps(given, allow_nan=False))
        schema = checked_schema(plain)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, GrammarError):
            raise
        raise ConfigError(Option("format"), f" is no JSON schema: {error}") from None
    return Source(schema_grammar(schema), json.loads, schema)


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """A checked JSON schema as a grammar for the matcher."""
    return json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": JSON_OPTIONS}}]})


def _of_lark(grammar: str) -> Source:
    return Source(json.dumps({"grammars": [{"lark_grammar": grammar}]}), str)


def _slashed(pattern: str) -> str:
    """A pattern between slashes, as Lark writes it."""
    return pattern.replace("/", r"\/").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
