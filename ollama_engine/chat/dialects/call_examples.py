"""How a call looks in a dialect, with words in capitals for what a model puts in: for prompts that have to say so.

Made of the same parts as the grammars that force calls, so that what a model is told is what parsers read.
"""

from __future__ import annotations

from collections.abc import Sequence

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.tool_grammar import AnyText, Json, Part, Pattern, Repeated, ToolChoice
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["call_example"]

NAME, ARGUMENT, VALUE = "NAME", "ARGUMENT", "VALUE"
_TOOL = ToolDefinition(NAME, {"type": "object", "properties": {ARGUMENT: {"type": "string"}}, "required": [ARGUMENT]})
_NUMBER = "0"
"""Matches the patterns of all dialects; they are those of ids."""


def call_example(dialect: Dialect) -> str | None:
    """A call of the tool NAME with {"ARGUMENT": "VALUE"}; None for dialects without calls, or without a single form."""
    if not dialect.forms:
        return None
    form = dialect.forms[0]
    return form.begin + _written(form.write(_TOOL)) + form.end


def _written(parts: Sequence[Part]) -> str:
    return "".join(map(_part, parts))


def _part(part: Part) -> str:
    if isinstance(part, str):
        written = part
    elif isinstance(part, Json):
        written = f'{{"{ARGUMENT}": "{VALUE}"}}' if "properties" in part.schema else f'"{VALUE}"'
    elif isinstance(part, AnyText):
        written = VALUE + part.end
    elif isinstance(part, Pattern):
        written = _NUMBER
    elif isinstance(part, ToolChoice):
        written = _written(part.choices[0])
    elif isinstance(part, Repeated):
        written = _written(part.item)
    else:
        written = part.separator.join(_written(item) for item, _ in part.items)
    return written
