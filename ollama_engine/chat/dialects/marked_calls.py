"""Calls with markers of their own, inside of a section or without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ollama_engine.chat.dialects.answer import Answer, Call
from ollama_engine.chat.dialects.scanner import Reading, markers
from ollama_engine.chat.dialects.tool_grammar import CallForm, Part
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["MarkedCalls"]


@dataclass(frozen=True)
class MarkedCalls:
    """Calls that each begin and end with a marker; a `Handler` of what follows a section's marker.

    read: reads what is between a call's markers.
    begin: the marker before each call; "" where the section's own marker is it, and each call is a section.
    end: the marker behind each call; "" where its arguments end it.
    section_end: the marker behind all calls.
    """

    read: Callable[[Call], Reading[None]]
    begin: str = ""
    end: str = ""
    section_end: str = ""

    def __call__(self, answer: Answer) -> Reading[None]:
        ends = markers(*filter(None, (self.end, self.section_end)), line_breaks=0)
        while not self.begin or (yield from self._begins(answer)):
            yield from answer.call(self._item, ends=ends)
            answer.record()
            if not self.begin:
                break
        if self.section_end:
            yield from answer.skip_space()
            yield from answer.accept(self.section_end)

    def form(
        self, marker: str, write: Callable[[ToolDefinition], Sequence[Part]], *, gap: str = "\n"
    ) -> CallForm:  # fmt: skip
        """How models write these calls behind the section's marker; `gap` stands between markers."""
        return CallForm(
            write,
            begin=f"{marker}{gap}{self.begin}" if self.begin else marker,
            between=f"{self.end}{gap}{self.begin or marker}",
            end=f"{self.end}{gap}{self.section_end}" if self.section_end else self.end,
            marker=marker,
        )

    def _begins(self, answer: Answer) -> Reading[bool]:
        yield from answer.skip_space()
        return (yield from answer.accept(self.begin)) is not None

    def _item(self, call: Call) -> Reading[None]:
        answer = call.answer
        yield from self.read(call)
        if self.end:
            yield from answer.skip_space()
            yield from answer.close(self.end, self.begin, self.section_end)
