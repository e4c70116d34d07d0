"""Plain JSON: models without a format of their own, told to answer with a call or an array of calls.

    {"name": "weather", "arguments": {"city": "Paris"}}
    [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time", "arguments": {}}]

Calls stand at the beginning of the answer; a fence of ```json around them is understood. It is certain to be a call
when an object has had both a name and arguments; other JSON is content.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection, write_object
from ollama_engine.chat.dialects.python_calls import PythonSection
from ollama_engine.chat.dialects.scanner import Reading
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["PLAIN_JSON", "read_unmarked"]

_FENCE = "```json"
_FENCED = JsonSection(end="```")
_BARE = JsonSection(separator=";")


def read_unmarked(answer: Answer, python: bool = False) -> Reading[None]:
    """Read the calls that the rest of the answer begins with, if it does.

    python: a list of calls in Python counts as well: [weather(city="Paris")].
    """
    if not answer.tools:
        return
    answer.record()
    yield from answer.skip_space()
    section = _FENCED if (yield from answer.accept(_FENCE)) else _BARE
    yield from answer.skip_space()
    following = yield from answer.peek()
    if python and following == "[":
        yield from PythonSection(section.end, certain=False)(answer)
    elif following in ("{", "["):
        yield from section.read(answer, certain=False)
    answer.content(answer.recorded())


def _read(dialect: Dialect, answer: Answer) -> Reading[None]:
    yield from answer.think(dialect.thinking)
    yield from read_unmarked(answer)


PLAIN_JSON = Dialect("json", thinks=False, read=_read, forms=(CallForm(write_object(), between="\n"),))
