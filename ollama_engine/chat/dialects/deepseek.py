"""DeepSeek R1, V3 and V3.1.

    <think>They ask.</think>
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>                                                           (R1, V3)
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>
        <｜tool▁calls▁end｜>                                                                             (V3.1)

Both dialects read both. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.answer import Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import read_object
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import Reading

__all__ = ["DEEPSEEK_V3", "DEEPSEEK_V31"]


def _read_call(call: Call) -> Reading[None]:
    answer = call.answer
    yield from answer.skip_space()
    name = yield from answer.word()
    yield from answer.expect("<｜tool▁sep｜>")
    yield from answer.skip_space()
    fenced = (yield from answer.peek()) != "{"
    if fenced:  # what came first was the type, "function"
        name = yield from answer.word()
        yield from answer.skip_space()
        yield from answer.expect("```json")
        yield from answer.skip_space()
    call.begin(name)
    yield from read_object(call)
    if fenced:
        yield from answer.skip_space()
        yield from answer.expect("```")


DEEPSEEK_V3 = Dialect(
    "deepseek-v3",
    sections={
        "<｜tool▁calls▁begin｜>": MarkedCalls(
            _read_call, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", section_end="<｜tool▁calls▁end｜>"
        )
    },
    sections_end_thinking=True,
    turn_ends=("<｜end▁of▁sentence｜>",),
)
DEEPSEEK_V31 = Dialect(
    "deepseek-v3.1",
    sections=DEEPSEEK_V3.sections,
    sections_end_thinking=True,
    turn_ends=("<｜end▁of▁sentence｜>",),
)
