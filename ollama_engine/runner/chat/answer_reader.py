"""AnswerReader: chunks of text to chunks of a conversation, by the dialect's parser."""

from __future__ import annotations

from collections.abc import Sequence

from ollama_engine.chat.dialects import Parser
from ollama_engine.chat.events import (
    ContentDelta,
    Event,
    MalformedToolCall,
    ReasoningDelta,
    ToolCallEnd,
)
from ollama_engine.errors import IncompleteError
from ollama_engine.runner.chat.results import ChatChunk, ChatFinishReason, ToolEvent
from ollama_engine.runner.request.results import Chunk, ValueReader

__all__ = ["AnswerReader"]


class _Called:
    """Reads no value: the model asks for results of tools first."""

    cut = "it calls tools and waits for their results"

    def read(self, text: str, tokens: Sequence[int] | None) -> object:
        """Raises IncompleteError."""
        raise IncompleteError(f"the answer is not whole, {self.cut}", advice=["send them; see `tool_calls`"])


CALLED = _Called()


class AnswerReader:
    """Reads one answer. A malformed call is content too: no text gets lost.

    has_value: whether a format of the request is that of the content, not what forces a call.
    dropped_messages: how many messages its prompt lacks; the first chunk says it.
    """

    def __init__(self, parser: Parser, *, has_value: bool = True, dropped_messages: int = 0) -> None:
        self._parser = parser
        self._has_value = has_value
        self._dropped_messages = dropped_messages
        self._called = False

    def read(self, chunk: Chunk) -> ChatChunk:
        """Parses a chunk of the answer: the content, reasoning and calls that it adds."""
        events = self._parser.feed(chunk.text)
        if chunk.finish_reason is not None:
            events = [*events, *self._parser.finish()]
        self._called = self._called or any(isinstance(event, ToolCallEnd) for event in events)
        dropped_messages, self._dropped_messages = self._dropped_messages, 0
        return ChatChunk(
            content="".join(map(_content, events)),
            reasoning="".join(event.text for event in events if isinstance(event, ReasoningDelta)),
            tool_events=tuple(event for event in events if isinstance(event, ToolEvent)),
            tokens=chunk.tokens,
            logprobs=chunk.logprobs,
            finish_reason=self._finish_reason(chunk),
            usage=chunk.usage,
            prompt_logprobs=chunk.prompt_logprobs,
            reader=self._reader(chunk),
            prompt_token_ids=chunk.prompt_token_ids,
            dropped_messages=dropped_messages,
        )

    def _reader(self, chunk: Chunk) -> ValueReader | None:
        if not self._has_value or chunk.reader is None:
            return None
        return CALLED if self._called else chunk.reader

    def _finish_reason(self, chunk: Chunk) -> ChatFinishReason | None:
        return "tool_calls" if self._called and chunk.finish_reason == "stop" else chunk.finish_reason


def _content(event: Event) -> str:
    return event.text if isinstance(event, (ContentDelta, MalformedToolCall)) else ""
