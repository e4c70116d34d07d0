"""Hermes 2 and 3, Qwen 2.5 and 3, Granite 4, and many that were tuned like them.

    <think>
    They ask for the weather.
    </think>

    Let me look.
    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

Several calls follow each other, each between markers of its own; some models put several objects, or an array, between
one pair. Qwen models call inside their reasoning at times, without an end of it. Format: NousResearch's
Hermes-Function-Calling, and the templates of these models.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection, write_object
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["HERMES"]

HERMES = Dialect(
    "hermes",
    sections={"<tool_call>": JsonSection(end="</tool_call>", begin="<tool_call>")},
    calls_in_thinking=("<tool_call>{", "<tool_call>\n{"),
    turn_ends=("<|im_end|>",),
    forms=(
        CallForm(
            write_object(),
            begin="<tool_call>\n",
            between="\n</tool_call>\n<tool_call>\n",
            end="\n</tool_call>",
            marker="<tool_call>",
        ),
    ),
)
