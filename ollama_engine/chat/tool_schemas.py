"""Tools as callers pass them, checked, in the form that templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ollama_engine.chat.dialects import ToolDefinition
from ollama_engine.chat.function_tools import described
from ollama_engine.chat.plain_data import as_mapping, is_function
from ollama_engine.errors import ChatError

__all__ = ["definitions", "read_tools"]


def read_tools(tools: object) -> list[dict[str, Any]] | None:
    """Functions as `{"type": "function", "function": {"name", "description", "parameters"}}`; None for no tools.

    A function without what stands around it is taken too, and a Python function, which its signature and docstring
    describe. Raises ChatError that names the tool and the field.
    """
    if tools is None:
        return None
    if isinstance(tools, (str, bytes)) or not isinstance(tools, Sequence):
        raise ChatError(f"tools: expected a list of functions with JSON schemas, got {type(tools).__name__}")
    return [_read_tool(f"tools[{number}]", tool) for number, tool in enumerate(tools)] or None


def definitions(tools: Sequence[dict[str, Any]] | None) -> tuple[ToolDefinition, ...]:
    """Names and parameters of the tools, for parsers of calls."""
    return tuple(
        ToolDefinition(tool["function"]["name"], tool["function"].get("parameters") or {}) for tool in tools or ()
    )


def _read_tool(where: str, tool: object) -> dict[str, Any]:
    if is_function(tool):
        tool = described(where, tool)
    given = dict(as_mapping(where, tool))
    if "function" not in given and isinstance(given.get("name"), str):
        kind = given.pop("type", "function")
        given = {"type": kind, "function": given}
    function = given.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ChatError(f'{where}.function.name: expected {{"function": {{"name": ...}}}}, got {tool!r:.60}')
    if any("\ud800" <= c <= "\udfff" for c in function["name"]):
        raise ChatError(f"{where}.function.name: expected no lone surrogates, got {function['name']!r:.60}")
    if not isinstance(function.get("parameters", {}), dict | None):
        raise ChatError(f"{where}.function.parameters: expected a JSON schema, got {function['parameters']!r:.60}")
    return {"type": "function", **given}
