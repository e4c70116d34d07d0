"""Conversation: a caller's messages and what goes with them into a template, checked and copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
    def droppable(self) -> list[list[int]]:
        """Numbers of the messages that may be left out, the oldest first. Those of one list go together.

        A question goes with all that answers it; of the last question, which stays, the oldest call of a tool goes with
        its results. Templates refuse one without the other, and questions that do not alternate with answers. System
        messages stay, and so does what comes last.
        """
        roles = [message.role for message in self.messages]
        last_question = max((number for number, role in enumerate(roles) if role == "user"), default=-1)
        turns: list[list[int]] = []
        for number, role in enumerate(roles):
            if role in ("system", "developer"):
                continue
            if not turns or role == "user" or (role == "assistant" and number > last_question):
                turns.append([])
            turns[-1].append(number)
        return [turn for turn in turns[:-1] if last_question not in turn]

    def without(self, turns: Iterable[Iterable[int]]) -> Conversation:
        """The conversation without these messages."""
        dropped = set(chain.from_iterable(turns))
        return replace(self, messages=[each for number, each in enumerate(self.messages) if number not in dropped])

    def begun(self, system: str, messages: Sequence[Mapping[str, Any]]) -> Conversation:
        """The conversation behind these `messages`, and behind `system` unless it begins with a system message."""
        begin = read_messages(messages) if messages else []
        if system and (not self.messages or self.messages[0].role not in ("system", "developer")):
            begin = [Message("system", system), *begin]
        return replace(self, messages=[*begin, *self.messages]) if begin else self

    def shortened(self, shorten: Callable[[str], str]) -> Conversation:
        """The conversation with shorter texts in its messages, but for answers: templates look into those."""
        return replace(self, messages=[_shortened(each, shorten) for each in self.messages])

    @property
    def is_long(self) -> bool:
        """Whether no event loop should wait while it is rendered and tokenized."""
        return len(self.messages) > AT_ONCE >> 6 or self._characters() > AT_ONCE

    @property
    def certain(self) -> int:
        """Characters that any template writes: those of a user's text at the end, but for white space around it."""
        return _question_length(self.messages[-1]) if self.messages else 0

    def certainly_dropped(self, turns: Sequence[Sequence[int]], most: int) -> int:
        """How many of these turns go at least, the oldest first, where a prompt has room for `most` characters.

        Only a user's texts are counted: a template that writes a message at all writes those.
        """
        lengths = [sum(_question_length(self.messages[number]) for number in turn) for turn in turns]
        room = most - self.certain
        while lengths and lengths[-1] <= room:
            room -= lengths.pop()
        return len(lengths)

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


def _question_length(message: Message) -> int:
    """Characters of a user's text without white space around it; 0 for other messages."""
    return len(message.content.strip()) if message.role == "user" and isinstance(message.content, str) else 0


def _shortened(message: Message, shorten: Callable[[str], str]) -> Message:
    content = message.content
    if message.role == "assistant" or not content:
        return message
    if isinstance(content, str):
        return replace(message, content=shorten(content))
    return replace(message, content=tuple(shorten(part) if isinstance(part, str) else part for part in content))


def _characters(message: Message) -> int:
    calls = sum(len(call.arguments_text) for call in message.tool_calls)
    return len(message.text) + len(message.reasoning or "") + calls
