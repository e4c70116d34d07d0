"""ForcedCall: a grammar of calls, and which tool it is refused for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ollama_engine.chat.dialects import ToolDefinition
from ollama_engine.errors import ConfigError, GrammarError
from ollama_engine.sample.constraints.formats import Lark
from ollama_engine.sample.constraints.source import read_format

__all__ = ["ForcedCall", "naming_tools"]


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """The grammar of an answer that has to call a tool.

    Attributes:
        grammar: the calls, as the dialect writes them.
        behind_reasoning: makes the grammar of calls alone, for behind reasoning that a budget bounds; None where the
            dialect does not tell them apart.
        tools: those that may be called, with their numbers in the caller's list.
    """

    grammar: Lark
    behind_reasoning: Callable[[], Lark] | None
    tools: tuple[tuple[int, ToolDefinition], ...]


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
    """Raises GrammarError for parameters that cannot be compiled by themselves, in any vocabulary."""
    from ollama_engine.sample.constraints.compiler import check_alone  # noqa: PLC0415 (few ask for a format)

    try:
        check_alone(read_format(dict(tool.parameters)))
    except (ConfigError, GrammarError) as error:
        pointer, keyword = getattr(error, "pointer", None), getattr(error, "keyword", None)
        raise GrammarError(f"{where}: {error}", pointer=pointer, keyword=keyword) from None
