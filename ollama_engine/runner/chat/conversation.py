"""Conversation: a caller's messages and what goes with them into a template, checked and copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ollama_engine.chat.messages import Message, read_messages
from ollama_engine.chat.plain_data import plain_data, read_documents
from ollama_engine.chat.tool_schemas import read_tools
from ollama_engine.runner.chat.options import ChatOptions
from ollama_engine.runner.request.prompts import AT_ONCE

__all__ = ["Conversation", "read_conversation"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A caller's messages and options, checked and copied: changing them later changes no prompt."""

    messages: Sequence[Message]
    tools: list[dict[str, Any]] | None
    documents: list[dict[str, Any]] | None
    variables: dict[str, Any]

    @property
    def droppable(self) -> list[int]:
        """Numbers of the messages that may be left out, the oldest first: not system messages, and not the last."""
        return [number for number, message in enumerate(self.messages[:-1]) if message.role != "system"]

    def without(self, numbers: Sequence[int]) -> Conversation:
        """The conversation without these messages."""
        dropped = set(numbers)
        return replace(self, messages=[each for number, each in enumerate(self.messages) if number not in dropped])

    @property
    def is_long(self) -> bool:
        """Whether no event loop should wait while it is rendered and tokenized."""
        return len(self.messages) > AT_ONCE >> 6 or self._characters() > AT_ONCE

    def _characters(self) -> int:
        """Approximate number of characters of messages, tools, documents and variables."""
        beside = [value for value in (self.tools, self.documents, self.variables) if value]
        return sum(map(_characters, self.messages)) + (len(repr(beside)) if beside else 0)


def read_conversation(messages: Sequence[object], options: ChatOptions) -> Conversation:
    """Raises ChatError for messages, tools and documents that cannot be read."""
    return Conversation(
        read_messages(messages),
        None if options.tool_choice == "none" else read_tools(options.tools),
        read_documents(options.documents),
        plain_data(options.template_variables, "template_variables"),
    )


def _characters(message: Message) -> int:
    calls = sum(len(call.arguments_text) for call in message.tool_calls)
    return len(message.text) + len(message.reasoning or "") + calls
