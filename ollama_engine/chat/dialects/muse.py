"""Muse, whose messages say to whom they go.

     to=self<|message|>They ask.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>
    <atem:invoke name="weather">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>

A message to itself is reasoning. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import Reading, markers
from ollama_engine.chat.dialects.tagged_calls import TaggedCall

__all__ = ["MUSE"]

_MESSAGE = markers("<|message|>", line_breaks=0)
_ENDS = ("<|eom|>", "<|eot|>")


def _read(dialect: Dialect, answer: Answer) -> Reading[None]:
    """Read messages: a recipient, then reasoning, or content with calls in it."""
    if answer.reasoning_open:
        yield from answer.until(markers(*_ENDS), answer.reasoning)
    elif (yield from answer.peek()) not in (" ", "<"):
        yield from answer.until(markers("<|start|>"), answer.content)
    while True:
        header: list[str] = []
        if (yield from answer.until(_MESSAGE, header.append)) is None:
            answer.content("".join(header))
            return
        if "".join(header).endswith(" to=self"):
            yield from answer.until(markers(*_ENDS), answer.reasoning)
        else:
            yield from answer.body(dialect.sections, ends=_ENDS)


MUSE = Dialect(
    "muse",
    thinking=((" to=self<|message|>", "<|eom|>"),),
    sections={
        "<atem:function_calls>": MarkedCalls(
            TaggedCall(name_end='">', key='<atem:parameter name="', key_end='">', value_end="</atem:parameter>"),
            '<atem:invoke name="',
            "</atem:invoke>",
            section_end="</atem:function_calls>",
        )
    },
    turn_ends=("<|eot|>",),
    read=_read,
)
