"""From a format to the grammar's text, as llguidance reads it, and to what reads an answer's value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, get_origin

from ollama_engine.errors import ConfigError, Option
from ollama_engine.sample.constraints.formats import FORMATS, GBNF, Choice, Lark, Regex, ValueOrCalls
from ollama_engine.sample.constraints.python_types import schema_of
from ollama_engine.sample.constraints.response_format import ANY_OBJECT, unwrapped
from ollama_engine.sample.constraints.schema import checked_schema

__all__ = ["Source", "format_key", "lark_with_schemas", "pattern_of", "read_format", "schema_and_reader",
           "schema_grammar"]  # fmt: skip

JSON_OPTIONS: Mapping[str, Any] = {
    # A space, or a line break with its indentation: with some models, more never ends.
    "whitespace_pattern": r" |\n(?: {0,16}|\t{0,8})",
    # Every text has one spelling: a name with escapes would pass as one that the schema does not list.
    "json_allowed_escapes": 'nrtbf"\\',
    "lenient": False,
    "coerce_one_of": False,
}


_BARE = re.compile(r"\\.|/|\n", re.DOTALL)
_ESCAPED = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
_JSON = re.compile(r"%json\s*")


class Source(NamedTuple):
    """A grammar before it is compiled."""

    text: str
    """The grammar's text, which the matcher is made of."""
    read: Callable[[str], object]
    """A whole answer's value."""
    schema: Mapping[str, Any] | None = None
    """The JSON schema that it was made of."""


def format_key(given: object) -> Hashable:
    """Cache key of a format: a schema's text, in its order; a type; or the format itself.

    Raises ConfigError for a dict that JSON cannot write.
    """
    if isinstance(given, Mapping):
        return ("schema", _written(given))
    try:
        hash(given)
    except TypeError:
        return ("object", id(given), repr(given))
    return (type(given), given)


def read_format(given: object) -> Source:
    """The grammar that a format stands for.

    Raises ConfigError for what is no format, GrammarError for what is wrong in it.
    """
    of_schema = schema_and_reader(given)
    if of_schema is not None:
        return _of_schema(*of_schema)
    read = given.read if isinstance(given, ValueOrCalls) else str
    return Source(json.dumps({"grammars": [{"lark_grammar": _lark_of(given)}]}), read)


def schema_and_reader(given: object) -> tuple[Mapping[str, Any], Callable[[str], object]] | None:
    """The JSON schema of a format, not checked yet, and what reads its values; None for a format that has no schema.

    Raises ConfigError for what is no schema.
    """
    if isinstance(given, (str, Mapping)):
        return unwrapped(_schema_of_text(given) if isinstance(given, str) else given), json.loads
    if isinstance(given, type) or get_origin(given) is not None:
        return schema_of(given)
    return None


def pattern_of(given: Regex | Choice) -> str:
    """The regular expression of whole answers, as Lark writes it between slashes."""
    return _slashed(given.pattern) if isinstance(given, Regex) else "|".join(map(_literal, given.choices))


def _lark_of(given: object) -> str:
    if isinstance(given, (Regex, Choice)):
        return f"start: /{pattern_of(given)}/"
    if isinstance(given, (Lark, ValueOrCalls)):
        return lark_with_schemas(given.grammar)
    if isinstance(given, GBNF):
        from ollama_engine.sample.constraints.gbnf_lark import lark_of  # noqa: PLC0415 (5 ms of every first format, and few are GBNF)

        return lark_of(given.grammar)
    raise _no_format(given)


def _no_format(given: object) -> ConfigError:
    return ConfigError(Option("format"), f" is {FORMATS}; got {given!r:.80}")


def _schema_of_text(text: str) -> Mapping[str, Any]:
    if text == "json":
        return ANY_OBJECT
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith("{"):
            raise ConfigError(Option("format"), f" is a JSON schema that cannot be read: {error}") from None
        raise _no_format(text) from None
    if not isinstance(schema, dict):
        raise _no_format(text)
    return schema


def _written(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(schema), allow_nan=False)
    except RecursionError:
        raise ConfigError(Option("format"), " is a JSON schema that is nested too deeply; make it flatter") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(Option("format"), f" is a dict that is no JSON schema: {error}") from None


def _of_schema(given: Mapping[str, Any], read: Callable[[str], object]) -> Source:
    # What JSON makes of it: lists of tuples, and nothing but texts, numbers, lists and objects.
    schema = checked_schema(json.loads(_written(given)))
    return Source(schema_grammar(schema), read, schema)


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """A checked JSON schema as a grammar for the matcher."""
    return json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": JSON_OPTIONS}}]})


def lark_with_schemas(grammar: str) -> str:
    """A Lark grammar whose `%json` schemas are checked, and compiled with the options of others.

    Raises GrammarError for parts that cannot be enforced.
    """
    pieces, at = [], 0
    for match in _JSON.finditer(grammar):
        try:
            schema, length = json.JSONDecoder().raw_decode(grammar[match.end() :])
        except ValueError:
            continue  # the matcher says what is wrong, and where
        if match.start() < at or not isinstance(schema, dict):
            continue
        checked = {**checked_schema(schema), "x-guidance": JSON_OPTIONS}
        pieces += [grammar[at : match.end()], json.dumps(checked)]
        at = match.end() + length
    return "".join([*pieces, grammar[at:]])


def _literal(text: str) -> str:
    """A pattern that matches this text alone."""
    return "".join(c if c.isascii() and c.isalnum() else rf"\x{{{ord(c):X}}}" for c in text)


def _slashed(pattern: str) -> str:
    """A pattern between slashes, as Lark writes it."""
    return _BARE.sub(lambda found: _ESCAPED.get(found[0], found[0]), pattern)
