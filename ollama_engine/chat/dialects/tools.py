"""ToolDefinition: a tool as a dialect needs to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ToolDefinition"]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool that the model may call.

    Attributes:
        name: as calls name it.
        parameters: JSON Schema of the arguments, an object; dialects that write values without quotes tell strings
            from numbers by it, and grammars are made of it.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
