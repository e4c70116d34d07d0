"""Events: what a dialect's parser makes of an answer while its text streams in.

    ContentDelta("Let me look.")
    ToolCallStart(0, "k3Jx9QpLm", "weather")
    ToolCallDelta(0, '{"city": "Par')
    ToolCallDelta(0, 'is"}')
    ToolCallEnd(0, ToolCall(...))

How a text is cut into chunks changes where deltas are cut and nothing else: `joined` makes the same list of any cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "ContentDelta",
    "Event",
    "MalformedToolCall",
    "ParsedToolCall",
    "ReasoningDelta",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "joined",
]


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text that the model thinks, before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """A call that the model wrote.

    Attributes:
        id: the dialect's own, or nine random letters and digits, which is what Mistral's templates ask for.
        name: one of the tools that were offered.
        arguments: parsed, in the order written.
        arguments_text: the same as JSON text of one object. Numbers stand as the model wrote them, so an integer too
            long for a double is exact here. Dialects that write arguments otherwise are translated.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    arguments_text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. Indices count the calls of an answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a call's arguments, as JSON text; joined they are `arguments_text`."""

    index: int
    arguments_text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is complete and well-formed."""

    index: int
    call: ParsedToolCall


@dataclass(frozen=True, slots=True)
class MalformedToolCall:
    """A call that cannot be read, or of a tool that was not offered.

    Attributes:
        text: all of it as the model wrote it, markers included.
        reason: why it cannot be read.
        index: the call whose start was already told, which has no end then; None where none was.
    """

    text: str
    reason: str
    index: int | None = None


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | MalformedToolCall


def joined(events: Iterable[Event]) -> list[Event]:
    """The events with deltas that follow each other made one, in linear time."""
    runs: list[tuple[Event, list[str]]] = []
    for event in events:
        text = _delta_text(event)
        if text is not None and runs and _continues(runs[-1][0], event):
            runs[-1][1].append(text)
        else:
            runs.append((event, [] if text is None else [text]))
    return [_with_text(event, "".join(texts)) if texts else event for event, texts in runs]


def _delta_text(event: Event) -> str | None:
    if isinstance(event, ContentDelta | ReasoningDelta):
        return event.text
    return event.arguments_text if isinstance(event, ToolCallDelta) else None


def _continues(before: Event, event: Event) -> bool:
    return type(before) is type(event) and getattr(before, "index", None) == getattr(event, "index", None)


def _with_text(event: Event, text: str) -> Event:
    if isinstance(event, ToolCallDelta):
        return replace(event, arguments_text=text)
    return type(event)(text) if isinstance(event, ContentDelta | ReasoningDelta) else event
