"""GigaChat 3 and 3.1.

    Let me look.<|message_sep|>

    function call<|role_sep|>
    {"name": "weather", "arguments": {"city": "Paris"}}                                          (3)
    Let me look.<|function_call|>{"name": "weather", "arguments": {"city": "Paris"}}             (3.1)

Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection, write_object
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["GIGACHAT"]

GIGACHAT = Dialect(
    "gigachat",
    sections={
        "<|message_sep|>\n\nfunction call<|role_sep|>\n": JsonSection(),
        "function call<|role_sep|>\n": JsonSection(),
        "<|function_call|>": JsonSection(),
    },
    dropped=("<|message_sep|>",),
    forms=tuple(
        CallForm(write_object(), begin=marker, marker=marker)
        for marker in ("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n")
    ),
)
