"""Gemma 2 and 3, which have no format of their own: those that Google's guides prompt for.

    ```tool_code
    weather(city="Paris")
    ```
    [weather(city="Paris"), get_time()]
    {"name": "weather", "parameters": {"city": "Paris"}}

The last two can be calls only where the answer begins with them, perhaps in a fence of ```json. Around the first,
`print(...)` is understood. Format: "Function calling with Gemma" in Google's documentation.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Answer
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.plain_json import read_unmarked
from ollama_engine.chat.dialects.python_calls import PythonSection, write_python_call
from ollama_engine.chat.dialects.scanner import Reading
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["GEMMA"]


def _read(dialect: Dialect, answer: Answer) -> Reading[None]:
    yield from answer.think(dialect.thinking)
    yield from read_unmarked(answer, python=True)
    yield from answer.body(dialect.sections)


GEMMA = Dialect(
    "gemma",
    sections={"```tool_code": PythonSection("```", printed=True)},
    turn_ends=("<end_of_turn>",),
    read=_read,
    forms=(CallForm(write_python_call, begin="```tool_code\n", between="\n", end="\n```", marker="```tool_code"),),
)
