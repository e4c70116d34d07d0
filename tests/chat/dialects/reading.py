"""Reading answers in tests: a whole text cut into chunks, and what its events mean together."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ollama_engine.chat.dialects import Dialect, ToolDefinition
from ollama_engine.chat.events import (
    ContentDelta,
    Event,
    MalformedToolCall,
    ParsedToolCall,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    joined,
)

TOOLS = (
    ToolDefinition(
        "weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    ),
    ToolDefinition("get_time", {"type": "object", "properties": {"zone": {"type": "string"}}}),
)


@dataclass
class Answer:
    """The answer that its events make together."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedToolCall] = field(default_factory=list)
    malformed: list[MalformedToolCall] = field(default_factory=list)

    @property
    def named(self) -> list[tuple[str, Any]]:
        return [(call.name, dict(call.arguments)) for call in self.calls]


def chunks(text: str, sizes: Iterable[int]) -> list[str]:
    """The text cut into chunks of these sizes, again and again."""
    cut, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            return cut
        cut.append(text[at : at + size])
        at += size
    return [text]


def events(
    dialect: Dialect,
    pieces: Iterable[str],
    tools: Sequence[ToolDefinition] = TOOLS,
    reasoning_open: bool = False,
) -> list[Event]:
    """All events of an answer; ids are "id0", "id1", ..."""
    ids = (f"id{number}" for number in itertools.count())
    parser = dialect.parser(tools=tools, reasoning_open=reasoning_open, new_id=lambda: next(ids))
    told = [event for piece in pieces for event in parser.feed(piece)]
    return told + parser.finish()


def read(dialect: Dialect, text: str, **options: Any) -> Answer:
    """The answer, read as a whole and character by character, which must agree; its events checked."""
    whole = joined(events(dialect, [text], **options))
    assert joined(events(dialect, text, **options)) == whole
    return summed(whole)


def summed(told: Iterable[Event]) -> Answer:
    """The answer that joined events make together; calls begin, go on and end in this order."""
    answer, text, begun = Answer(), "", -1
    for event in told:
        if isinstance(event, ContentDelta):
            answer.content += event.text
        elif isinstance(event, ReasoningDelta):
            answer.reasoning += event.text
        elif isinstance(event, ToolCallStart):
            begun, text = begun + 1, ""
            assert event.index == begun
        elif isinstance(event, ToolCallDelta):
            assert event.index == begun
            text += event.arguments_text
        elif isinstance(event, ToolCallEnd):
            assert event.index == begun
            assert event.call.arguments_text == text
            assert json.loads(text) == event.call.arguments
            answer.calls.append(event.call)
        else:
            assert event.index in (None, begun)
            answer.malformed.append(event)
    return answer
