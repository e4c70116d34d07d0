"""Plain text: models that call no tools. All of the answer is content, but for a <think> block at its beginning."""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.scanner import Reading

__all__ = ["PlainText"]


class PlainText(Dialect):
    """No tool calls."""

    name = "text"

    def read(self, answer: Answer) -> Reading[None]:
        yield from answer.think("<think>", "</think>")
