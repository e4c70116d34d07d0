"""Plain JSON: models without a format of their own, told to answer with a call or an array of calls.

    {"name": "weather", "arguments": {"city": "Paris"}}
    [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {}}]

The answer is calls and nothing else, or it is content; a fence of ```json around the calls is understood. It is certain
to be a call when an object has had both a name and arguments; other JSON is content.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import Section
from ollama_engine.chat.dialects.scanner import Reading

__all__ = ["PlainJson"]


class PlainJson(Dialect):
    """A JSON object, or an array of objects, as the whole answer."""

    name = "json"

    def read(self, answer: Answer) -> Reading[None]:
        yield from answer.think("<think>", "</think>")
        if not answer.tools:
            return
        answer.record()
        yield from answer.skip_space()
        fence = "```json" if (yield from answer.accept("```json")) else ""
        yield from answer.skip_space()
        if (yield from answer.peek()) in ("{", "["):
            yield from Section(answer, end="```" if fence else "", separator=";").read(certain=False)
        answer.content(answer.recorded())
