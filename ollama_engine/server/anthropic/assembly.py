"""MessageAssembly: chunks of a chat to the content blocks of a message, and to the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ollama_engine.chat.events import MalformedToolCall, ToolCallDelta, ToolCallEnd, ToolCallStart
from ollama_engine.runner.chat.results import ChatChunk, ToolEvent

__all__ = ["MessageAssembly"]

Event = dict[str, Any]


class MessageAssembly:
    """The content of one message, as it comes. `content` has the blocks that are complete, and the open one."""

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []
        self._index = -1
        self._open: dict[str, Any] | None = None

    def feed(self, chunk: ChatChunk) -> Iterator[Event]:
        """The events that tell of a chunk."""
        if chunk.reasoning:
            yield from self._started({"type": "thinking", "thinking": "", "signature": ""})
            yield from self._more("thinking", {"type": "thinking_delta", "thinking": chunk.reasoning})
        if chunk.content:
            yield from self._started({"type": "text", "text": ""})
            yield from self._more("text", {"type": "text_delta", "text": chunk.content})
        for event in chunk.tool_events:
            yield from self._tool(event)
        if chunk.finish_reason is not None:
            yield from self._stopped()

    def _started(self, block: dict[str, Any]) -> Iterator[Event]:
        """The start of a block, unless one of its kind is open; calls are blocks of their own."""
        if self._open is not None and self._open["type"] == block["type"] != "tool_use":
            return
        yield from self._stopped()
        self._index += 1
        self._open = block
        self.content.append(block)
        yield {"type": "content_block_start", "index": self._index, "content_block": dict(block)}

    def _more(self, name: str, delta: dict[str, Any]) -> Iterator[Event]:
        assert self._open is not None
        self._open[name] += delta[name]
        yield {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _tool(self, event: ToolEvent) -> Iterator[Event]:
        if isinstance(event, ToolCallStart):
            yield from self._started({"type": "tool_use", "id": event.id, "name": event.name, "input": {}})
        elif self._open is None or self._open["type"] != "tool_use":
            return  # a malformed call whose start was not told: its text is content
        elif isinstance(event, ToolCallDelta):
            delta = {"type": "input_json_delta", "partial_json": event.arguments_text}
            yield {"type": "content_block_delta", "index": self._index, "delta": delta}
        elif isinstance(event, ToolCallEnd):
            self._open["input"] = event.call.arguments
            yield from self._stopped()
        elif isinstance(event, MalformedToolCall):
            self.content.remove(self._open)
            yield from self._stopped()

    def _stopped(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}
