"""Hermes 2 and 3, Qwen 2.5 and 3, and many that were tuned like them.

    <think>
    They ask for the weather.
    </think>

    Let me look.
    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

Several calls follow each other, each between markers of its own; some models put several objects, or an array, between
one pair. Format: NousResearch's Hermes-Function-Calling, and the templates of these models.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import Section
from ollama_engine.chat.dialects.scanner import Reading

__all__ = ["Hermes"]


class Hermes(Dialect):
    """A JSON object between <tool_call> and </tool_call>."""

    name = "hermes"
    turn_ends = ("<|im_end|>",)

    def read(self, answer: Answer) -> Reading[None]:
        yield from answer.think("<think>", "</think>")
        yield from answer.body({"<tool_call>": _calls})


def _calls(answer: Answer) -> Reading[None]:
    yield from Section(answer, end="</tool_call>", begin="<tool_call>").read()
