"""Liquid's LFM2 and 2.5.

    <think>They ask.</think><|tool_call_start|>[weather(city="Paris"), get_time()]<|tool_call_end|>

Told to, they write JSON objects in the list. Format: the templates and model cards.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.python_calls import PythonSection, write_python_call
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["LFM2"]

LFM2 = Dialect(
    "lfm2",
    sections={"<|tool_call_start|>": PythonSection("<|tool_call_end|>")},
    sections_end_thinking=True,
    turn_ends=("<|im_end|>",),
    forms=(
        CallForm(
            write_python_call,
            begin="<|tool_call_start|>[",
            between=", ",
            end="]<|tool_call_end|>",
            marker="<|tool_call_start|>",
        ),
    ),
)
