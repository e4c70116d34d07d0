"""ResponseAssembly: chunks of a chat to the output items of a response, and to the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from ollama_engine.chat.events import MalformedToolCall, ToolCallDelta, ToolCallEnd, ToolCallStart
from ollama_engine.runner.chat.results import ChatChunk, ToolEvent

__all__ = ["ResponseAssembly"]

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
Event = dict[str, Any]


class ResponseAssembly:
    """The output of one response, as it comes.

    `output` holds the items so far, the last of which may be open.
    """

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def feed(self, chunk: ChatChunk, logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[Event]:
        """The events that tell of a chunk; `logprobs` are those of its tokens."""
        if chunk.reasoning:
            yield from self._opened("reasoning", {"summary": [], "content": [{"type": "reasoning_text", "text": ""}]})
            yield from self._text(chunk.reasoning, "response.reasoning_text.delta", {})
        if chunk.content:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield from self._opened("message", {"role": "assistant", "content": [part]})
            yield from self._text(chunk.content, "response.output_text.delta", {"logprobs": list(logprobs)})
        for event in chunk.tool_events:
            yield from self._tool(event)
        if chunk.finish_reason is not None:
            yield from self._closed("incomplete" if chunk.finish_reason == "length" else "completed")

    def _opened(self, kind: str, fields: dict[str, Any]) -> Iterator[Event]:
        """Events of a new item, unless one of this kind is open; calls are opened one by one."""
        if self._open is not None and self._open["type"] == kind and kind != "function_call":
            return
        yield from self._closed("completed")
        item = {"id": f"{PREFIXES[kind]}_{uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self._open = item
        self.output.append(item)
        shown = {**item, "content": []} if "content" in item else dict(item)
        yield {"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": shown}
        if "content" in item:
            yield {"type": "response.content_part.added", **self._place(), "part": dict(item["content"][0])}

    def _text(self, text: str, kind: str, more: dict[str, Any]) -> Iterator[Event]:
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        if more.get("logprobs"):
            part["logprobs"] = [*part["logprobs"], *more["logprobs"]]
        yield {"type": kind, **self._place(), "delta": text, **more}

    def _tool(self, event: ToolEvent) -> Iterator[Event]:
        if isinstance(event, ToolCallStart):
            yield from self._opened("function_call", {"call_id": event.id, "name": event.name, "arguments": ""})
        elif self._open is None or self._open["type"] != "function_call":
            return  # a malformed call whose start was not told: its text is content
        elif isinstance(event, ToolCallDelta):
            self._open["arguments"] += event.arguments_text
            place = {"item_id": self._open["id"], "output_index": len(self.output) - 1}
            yield {"type": "response.function_call_arguments.delta", **place, "delta": event.arguments_text}
        elif isinstance(event, ToolCallEnd):
            self._open["arguments"] = event.call.arguments_text
            yield from self._closed("completed")
        elif isinstance(event, MalformedToolCall):
            yield from self._closed("incomplete")

    def _closed(self, status: str) -> Iterator[Event]:
        """Events of the end of the open item."""
        item = self._open
        if item is None:
            return
        item["status"] = status
        if item["type"] == "function_call":
            place = {"item_id": item["id"], "output_index": len(self.output) - 1}
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **told}
        else:
            part = item["content"][0]
            kind = "response.output_text.done" if item["type"] == "message" else "response.reasoning_text.done"
            more = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield {"type": kind, **self._place(), "text": part["text"], **more}
            yield {"type": "response.content_part.done", **self._place(), "part": part}
        yield {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": item}
        self._open = None

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self.output) - 1, "content_index": 0}
