"""Answer: what a dialect's parser reads from and tells events to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ollama_engine.chat.dialects.json_scanner import parse_object
from ollama_engine.chat.dialects.scanner import MalformedError, Markers, Reading, Scanner, ignore, markers
from ollama_engine.chat.dialects.tools import ToolDefinition
from ollama_engine.chat.events import (
    ContentDelta,
    Event,
    MalformedToolCall,
    ParsedToolCall,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

__all__ = ["Answer", "Call", "Handler"]

Handler = Callable[["Answer"], Reading[None]]
"""Reads a section, its first marker read already."""


class Answer(Scanner):
    """The answer's text, and the events made of it.

    Attributes:
        tools: the offered tools, by name. Where there are none, nothing is a call.
        reasoning_open: the prompt already opened the reasoning.
    """

    def __init__(self, tools: Iterable[ToolDefinition], reasoning_open: bool, new_id: Callable[[], str]) -> None:
        super().__init__()
        self.tools: Mapping[str, ToolDefinition] = {tool.name: tool for tool in tools}
        self.reasoning_open = reasoning_open
        self.new_id = new_id
        self._events: list[Event] = []
        self._calls = 0
        self._was_content = False  # what seemed to be a call

    def emit(self, event: Event) -> None:
        """Tell an event."""
        self._events.append(event)

    def drain(self) -> list[Event]:
        """The events told since the last time."""
        events, self._events = self._events, []
        return events

    def content(self, text: str) -> None:
        """Sink: text of the answer itself."""
        if text:
            self.emit(ContentDelta(text))

    def reasoning(self, text: str) -> None:
        """Sink: text of the reasoning."""
        if text:
            self.emit(ReasoningDelta(text))

    def next_index(self) -> int:
        """The index of a call that begins."""
        self._calls += 1
        return self._calls - 1

    def body(
        self,
        sections: Mapping[str, Handler],
        dropped: Sequence[str] = (),
        first: str | None = None,
        ends: Sequence[str] = (),
    ) -> Reading[None]:
        """Content, and sections that begin with a marker, each read by its handler, up to the answer's end.

        sections: handlers of calls; without tools there are none, and what they would read is content.
        dropped: markers that say nothing a caller needs.
        first: a marker that has been read already.
        ends: markers to stop behind.
        """
        handlers = sections if self.tools else {}
        where = markers(*handlers, *dropped, *ends)
        marker = first or (yield from self.until(where, self.content))
        while marker is not None and marker not in ends:
            if marker in handlers:
                self._was_content = False
                self.record(marker)
                yield from handlers[marker](self)
                self.recorded()
                if not self._was_content:
                    yield from self.skip_space()
            marker = yield from self.until(where, self.content)

    def think(
        self, pairs: Sequence[tuple[str, str]], sections: Iterable[str] = (), call_begins: Sequence[str] = ()
    ) -> Reading[str | None]:
        """The reasoning, where the answer begins with it or the prompt opened it, and the white space behind it.

        pairs: markers at the beginning and end of reasoning.
        sections, call_begins: markers of sections, and what ends reasoning too: texts that begin with such a marker.
            Returns the marker where that is what ended it; the rest of the text is not read.
        """
        begin = yield from self._at_start([begin for begin, _ in pairs])
        if begin is None and not self.reasoning_open:
            if (yield from self._at_start([end for _, end in pairs])):  # reasoning that was off, closed once more
                yield from self.skip_space()
            return None
        ends = [end for pair_begin, end in pairs if begin in (None, pair_begin)]
        calls = call_begins if self.tools else ()
        yield from self.skip_space()
        stop = yield from self.until(markers(*ends, *calls), self.reasoning)
        if stop is None or stop not in calls:
            yield from self.skip_space()
            return None
        marker = max((marker for marker in sections if stop.startswith(marker)), key=len)
        self.unread(len(stop) - len(marker))
        return marker

    def _at_start(self, texts: Sequence[str]) -> Reading[str | None]:
        """Read one of the markers, with at most two line breaks before it."""
        found = yield from self.accept(*("\n" * count + text for text in texts for count in range(3)))
        return None if found is None else found.lstrip("\n")

    def close(self, end: str, *begins: str) -> Reading[None]:
        """Read the marker that ends a call or a section, unless the answer ends or the next begins."""
        for begin in begins:
            if begin and (yield from self.peek(len(begin))) == begin:
                return
        if (yield from self.peek()):
            yield from self.expect(end)

    def call(
        self, read: Callable[[Call], Reading[None]], *, ends: Markers | None = None, certain: bool = True
    ) -> Reading[bool]:
        """Read one call, recorded from its marker on; whether it is well-formed.

        A malformed call is told as text: up to and with the next of `ends`, or all the rest without. Text that is not
        `certain` to be a call and turns out to be none is content.
        """
        call = Call(self, certain)
        try:
            yield from read(call)
            call.end()
        except MalformedError as problem:
            if not call.certain:
                self.content(self.recorded())
                self._was_content = True
                return False
            yield from self.until(ends or markers(), ignore)
            call.fail(call.problem or str(problem))
            return False
        return True


class Call:
    """One call while it is read: tells what is certain at once.

    Attributes:
        index: the call's index, None before its start was told.
        certain: False while what is being read may yet be something else than a call; it stays content then.
        tool: the tool it calls, once that is known.
        problem: why it is malformed, known before it was read to its end.
    """

    def __init__(self, answer: Answer, certain: bool = True) -> None:
        self.answer = answer
        self.index: int | None = None
        self.tool: ToolDefinition | None = None
        self.certain = certain
        self._id = ""
        self.problem: str | None = None
        self._waiting: list[str] = []
        self._text: list[str] = []

    def begin(self, name: str, id: str | None = None) -> None:
        """The name is known: the call starts, or is read to its end as malformed if no such tool was offered."""
        self.certain = True
        self.tool = self.answer.tools.get(name)
        if self.tool is None:
            self.problem = f"no tool {name!r} was offered"
            return
        self._id = id or self.answer.new_id()
        self.index = self.answer.next_index()
        self.answer.emit(ToolCallStart(self.index, self._id, name))
        for piece in self._waiting:
            self.arguments(piece)
        self._waiting.clear()

    def arguments(self, text: str) -> None:
        """Sink: more of the arguments' JSON text; waits for the name where that comes later."""
        if self.index is None:
            self._waiting.append(text)
        else:
            self._text.append(text)
            self.answer.emit(ToolCallDelta(self.index, text))

    def end(self) -> None:
        """The call is complete, and ends or is malformed as a whole; one without arguments has the empty object."""
        if self.index is None or self.tool is None:
            return self.fail(self.problem or "the call has no name")
        if not self._text:
            self.arguments("{}")
        text = "".join(self._text)
        try:
            arguments = parse_object(text)
        except MalformedError as problem:
            return self.fail(str(problem))
        return self.answer.emit(ToolCallEnd(self.index, ParsedToolCall(self._id, self.tool.name, arguments, text)))

    def fail(self, reason: str) -> None:
        """The call is malformed: its text is what has been recorded. An array that breaks off between calls is none."""
        text = self.answer.recorded()
        if text.strip():
            self.answer.emit(MalformedToolCall(text, reason, self.index))
