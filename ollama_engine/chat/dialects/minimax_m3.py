"""MiniMax M3.

    <mm:think>They ask.</mm:think>Let me look.]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

Every tag has the same token before it, and arguments are elements: an object has an element for each member, an array
one called "item" for each item. Format: the template.
"""

from __future__ import annotations

from typing import Any

from ollama_engine.chat.dialects.answer import Call
from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_scanner import MAX_DEPTH
from ollama_engine.chat.dialects.literals import escaped
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.scanner import MalformedError, Reading
from ollama_engine.chat.dialects.tagged_calls import CONTAINERS, STRING, decided, member, types_of

__all__ = ["MINIMAX_M3"]

_TAG = "]<]minimax[>[<"


def _read_call(call: Call) -> Reading[None]:
    answer = call.answer
    name = yield from answer.word()
    yield from answer.expect('">')
    call.begin(name)
    yield from answer.skip_space()
    yield from _elements(call, {} if call.tool is None else call.tool.parameters, 0)


def _elements(call: Call, schema: Any, depth: int) -> Reading[None]:
    """Read elements up to, and not with, the end of what they are inside of; an array's are all called "item"."""
    answer = call.answer
    if depth > MAX_DEPTH:
        raise MalformedError(f"more than {MAX_DEPTH} elements in each other")
    is_array, count = types_of(schema) == frozenset({"array"}), 0
    call.arguments("[" if is_array else "{")
    while (yield from answer.peek(len(_TAG) + 1)) != f"{_TAG}/":
        yield from answer.expect(_TAG)
        key, _ = yield from answer.text_to(">")
        if is_array and key != "item":
            raise MalformedError(f"expected an item of an array, got {key!r}")
        call.arguments((", " if count else "") + ("" if is_array else f'"{escaped(key)}": '))
        yield from _value(call, member(schema, key), depth)
        yield from answer.expect(f"{_TAG}/{key}>")
        yield from answer.skip_space()
        count += 1
    call.arguments("]" if is_array else "}")


def _value(call: Call, schema: Any, depth: int) -> Reading[None]:
    """Read the elements or the text of one element."""
    answer = call.answer
    types = types_of(schema)
    following = yield from answer.peek(len(_TAG) + 1)
    if (following.startswith(_TAG) and following != f"{_TAG}/") or types in CONTAINERS:
        yield from _elements(call, schema, depth + 1)
        return
    if types == STRING:
        call.arguments('"')
        yield from answer.text_before(_TAG, lambda text: call.arguments(escaped(text)))
        call.arguments('"')
        return
    pieces: list[str] = []
    yield from answer.text_before(_TAG, pieces.append)
    call.arguments(decided("".join(pieces), types))


MINIMAX_M3 = Dialect(
    "minimax-m3",
    thinking=(("<mm:think>", "</mm:think>"),),
    sections={
        f"{_TAG}tool_call>": MarkedCalls(
            _read_call, f'{_TAG}invoke name="', f"{_TAG}/invoke>", section_end=f"{_TAG}/tool_call>"
        )
    },
    turn_ends=("[e~[",),
)
