"""Plain text: models that call no tools. All of the answer is content, but for a <think> block at its beginning."""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect

__all__ = ["PLAIN_TEXT"]

PLAIN_TEXT = Dialect("text")
