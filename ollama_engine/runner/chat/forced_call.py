"""ForcedCall: a grammar of calls, or of calls and a value beside them, and which tool it is refused for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from ollama_engine.chat.dialects import Dialect, ToolDefinition
from ollama_engine.chat.dialects.tool_grammar import Json, Pattern
from ollama_engine.errors import ConfigError, GrammarError, Option
from ollama_engine.sample.constraints.formats import Choice, Lark, Regex, ValueOrCalls
from ollama_engine.sample.constraints.source import lark_with_schemas, pattern_of, read_format, schema_and_reader

__all__ = ["ForcedCall", "Value", "as_far_as_writable", "naming_tools"]


@dataclass(frozen=True, slots=True)
class Value:
    """What an answer is that calls no tool: its form in a grammar of calls, and what reads it."""

    form: Json | Pattern
    read: Callable[[str], object]

    @classmethod
    def of(cls, given: object) -> Value:
        """The value that a `format` asks for. Raises ConfigError for a grammar, whose rules have names of their own."""
        of_schema = schema_and_reader(given)
        if of_schema is not None:
            return cls(Json(of_schema[0]), of_schema[1])
        if isinstance(given, (Regex, Choice)):
            return cls(Pattern(pattern_of(given)), str)
        raise ConfigError(
            Option("format"), " is a grammar, which is not for an answer that may be a call of ", Option("tools"),
            advice=["leave one of them out", ("pass ", Option("tool_choice", "none")), "pass a JSON schema"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """The grammar of an answer that has to call a tool, or else have a value.

    Attributes:
        grammar: the calls, as the dialect writes them, and the value.
        behind_reasoning: makes the grammar without reasoning, for behind reasoning that a budget bounds; None where the
            dialect does not tell them apart.
        tools: those that may be called, with their numbers in the caller's list.
    """

    grammar: Lark | ValueOrCalls
    behind_reasoning: Callable[[], Lark | ValueOrCalls] | None
    tools: tuple[tuple[int, ToolDefinition], ...]

    @property
    def has_value(self) -> bool:
        """Whether the answer may be a value in place of a call."""
        return isinstance(self.grammar, ValueOrCalls)


def as_far_as_writable(tool: ToolDefinition, dialect: Dialect) -> ToolDefinition:
    """A tool that need not be called: with any arguments where the grammar of its own cannot be made."""
    try:
        lark_with_schemas(dialect.tool_grammar([tool], "required") or "")
    except (ConfigError, GrammarError):
        return replace(tool, parameters={})
    return tool if _compiles(json.dumps(dict(tool.parameters))) else replace(tool, parameters={})


@lru_cache(maxsize=1024)  # clients send the same tools with every request
def _compiles(schema: str) -> bool:
    """Whether a JSON schema can be compiled by itself."""
    try:
        _compile_alone(json.loads(schema))
    except (ConfigError, GrammarError):
        return False
    return True


@contextmanager
def naming_tools(forced: ForcedCall | None) -> Iterator[None]:
    """Where the grammar is compiled: a GrammarError names the tool whose schema is refused, with its place in there."""
    try:
        yield
    except GrammarError as error:
        for number, tool in forced.tools if forced else ():
            _check(f"tools[{number}] ({tool.name})", tool)
        raise error


def _check(where: str, tool: ToolDefinition) -> None:
    """Raises GrammarError for parameters that cannot be compiled by themselves."""
    try:
        _compile_alone(dict(tool.parameters))
    except (ConfigError, GrammarError) as error:
        pointer, keyword = getattr(error, "pointer", None), getattr(error, "keyword", None)
        raise GrammarError(f"{where}: {error}", pointer=pointer, keyword=keyword) from None


def _compile_alone(schema: object) -> None:
    """Compile a JSON schema, in any vocabulary. Raises ConfigError or GrammarError where it cannot be."""
    from ollama_engine.sample.constraints.compiler import check_alone  # noqa: PLC0415 (few ask for a format)

    check_alone(read_format(schema))
