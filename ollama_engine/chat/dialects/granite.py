"""IBM Granite 3; Granite 4 writes Hermes' format.

    <think>They ask.</think><response>Let me look.</response>
    <|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]

Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection

__all__ = ["GRANITE"]

GRANITE = Dialect(
    "granite",
    sections={"<|tool_call|>": JsonSection(), "<tool_call>": JsonSection()},
    dropped=("<response>", "</response>"),
    turn_ends=("<|end_of_text|>",),
)
