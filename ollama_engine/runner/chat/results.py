"""Results of chat requests: chunks while the answer is written, and a result at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal

from ollama_engine.chat.events import MalformedToolCall, ToolCallDelta, ToolCallEnd, ToolCallStart
from ollama_engine.chat.messages import Message, ToolCall
from ollama_engine.runner.request.results import NOT_WRITTEN, Parsed_co, Usage, ValueReader, value_of
from ollama_engine.sample import TokenLogprobs

__all__ = ["ChatChunk", "ChatFinishReason", "ChatResult", "ToolEvent"]

ChatFinishReason = Literal["stop", "length", "tool_calls"]
ToolEvent = ToolCallStart | ToolCallDelta | ToolCallEnd | MalformedToolCall


@dataclass(frozen=True, slots=True)
class ChatChunk:
    """One piece of a streamed answer. The last has `finish_reason` and `usage`.

    Attributes:
        content: text of the answer.
        reasoning: text of the model's reasoning before its answer.
        tool_events: tool calls, as they are written: a start, pieces of arguments, an end; or a malformed one.
        tokens: token ids sampled since the chunk before.
        logprobs: one entry for each of `tokens`, when asked for.
        finish_reason: "stop": the model ended, or a stop text appeared. "length": max_tokens or num_ctx is reached.
            "tool_calls": the model ended, and waits for results.
        usage: tokens counted and seconds taken.
        prompt_logprobs: in the first chunk; see `Completion`.
        reader: in the last chunk, reads the answer's value where a `format` was asked for; not for callers.
        prompt_token_ids: in the first chunk; see `Completion`.
        dropped_messages: in the first chunk; see `ChatResult`.
    """

    content: str = ""
    reasoning: str = ""
    tool_events: tuple[ToolEvent, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: ChatFinishReason | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    reader: ValueReader | None = field(default=None, repr=False, compare=False, metadata=NOT_WRITTEN)
    prompt_token_ids: tuple[int, ...] | None = None
    dropped_messages: int = 0


@dataclass(frozen=True, slots=True)
class ChatResult(Generic[Parsed_co]):
    """A whole answer.

    Attributes:
        message: the assistant's message; append it to the messages for the next turn.
        finish_reason: see `ChatChunk`.
        usage: tokens counted and seconds taken.
        tokens: all sampled tokens but the one that ended the answer.
        malformed_tool_calls: calls that cannot be read, with the reasons; their text is part of the content.
        logprobs: one entry for each of `tokens`, when `SamplingParams.logprobs` asked for them.
        prompt_logprobs: those of the whole prompt's tokens; see `Completion`.
        reader: reads `parsed`; not for callers.
        prompt_token_ids: those of the whole prompt; see `Completion`.
        dropped_messages: how many of the oldest messages were left out (`drop_messages`).
    """

    message: Message
    finish_reason: ChatFinishReason
    usage: Usage
    tokens: tuple[int, ...] = ()
    malformed_tool_calls: tuple[MalformedToolCall, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    reader: ValueReader | None = field(default=None, repr=False, compare=False, metadata=NOT_WRITTEN)
    prompt_token_ids: tuple[int, ...] | None = None
    dropped_messages: int = 0

    @property
    def parsed(self) -> Parsed_co:
        """The value of the content, where a `format` was asked for; see `Completion.parsed`."""
        value: Parsed_co = value_of(self.reader, self.content)
        return value

    @property
    def content(self) -> str:
        """Text of the answer."""
        return self.message.text

    @property
    def reasoning(self) -> str | None:
        """The model's reasoning before its answer; None without any."""
        return self.message.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Tools that the model calls."""
        return self.message.tool_calls


def collect_chat(chunks: list[ChatChunk]) -> ChatResult:
    """The result that these chunks, the last one included, make up."""
    last = chunks[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    events = [event for chunk in chunks for event in chunk.tool_events]
    calls = [event.call for event in events if isinstance(event, ToolCallEnd)]
    logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    message = Message(
        role="assistant",
        content="".join(chunk.content for chunk in chunks),
        reasoning="".join(chunk.reasoning for chunk in chunks) or None,
        tool_calls=tuple(ToolCall(call.name, call.arguments, call.id, call.arguments_text) for call in calls),
    )
    return ChatResult(
        message=message,
        finish_reason=last.finish_reason,
        usage=last.usage,
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        malformed_tool_calls=tuple(event for event in events if isinstance(event, MalformedToolCall)),
        logprobs=tuple(entry for part in logprobs for entry in part) if logprobs else None,
        prompt_logprobs=chunks[0].prompt_logprobs,
        reader=last.reader,
        prompt_token_ids=chunks[0].prompt_token_ids,
        dropped_messages=chunks[0].dropped_messages,
    )
