"""IBM Granite 3; Granite 4 writes Hermes' format.

    <think>They ask.</think><response>Let me look.</response>
    <|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]

Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection, write_object
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["GRANITE"]

GRANITE = Dialect(
    "granite",
    sections={"<|tool_call|>": JsonSection(), "<tool_call>": JsonSection()},
    dropped=("<response>", "</response>"),
    turn_ends=("<|end_of_text|>",),
    forms=(
        CallForm(write_object(), begin="<|tool_call|>[", between=", ", end="]", marker="<|tool_call|>"),
        CallForm(write_object(), begin="<tool_call>[", between=", ", end="]", marker="<tool_call>"),
    ),
)
