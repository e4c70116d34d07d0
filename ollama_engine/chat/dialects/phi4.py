"""Phi-4-mini, and FireFunction, which writes one of its forms.

    functools[{"name": "weather", "arguments": {"city": "Paris"}}]
    <|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]<|/tool_call|>

Phi-4-reasoning writes <think>. Format: Microsoft's model cards, and the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection, write_object
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["PHI4"]

PHI4 = Dialect(
    "phi4",
    sections={
        "functools[": JsonSection(in_array=True),
        "<|tool_call|>": JsonSection("<|/tool_call|>"),
    },
    turn_ends=("<|end|>", "<|im_end|>"),
    forms=(
        CallForm(write_object(), begin="<|tool_call|>[", between=", ", end="]<|/tool_call|>", marker="<|tool_call|>"),
        CallForm(write_object(), begin="functools[", between=", ", end="]", marker="functools["),
    ),
)
