"""Kimi K3.

    <|open|>think<|sep|>They ask.<|close|>think<|sep|><|open|>response<|sep|>Let me look.<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>
        Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>

Format: the template.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.tagged_calls import TaggedCall
from ollama_engine.chat.dialects.tool_grammar import Part, Pattern
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["KIMI_K3"]

_CALL = TaggedCall(
    name_end="<|sep|>",
    key='<|open|>argument key="',
    key_end='"',
    attributes=lambda _, kind: f' type="{"number" if kind == "integer" else kind}"',
    value="<|sep|>",
    value_end="<|close|>argument<|sep|>",
)


def _write(tool: ToolDefinition) -> list[Part]:
    return [f'{tool.name}" index="', Pattern("[0-9]{1,3}"), '"<|sep|>', *_CALL.write_arguments(tool)]


_CALLS = MarkedCalls(_CALL, '<|open|>call tool="', "<|close|>call<|sep|>", section_end="<|close|>tools<|sep|>")
KIMI_K3 = Dialect(
    "kimi-k3",
    thinking=(("<|open|>think<|sep|>", "<|close|>think<|sep|>"),),
    sections={"<|open|>tools<|sep|>": _CALLS},
    dropped=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    sections_end_thinking=True,
    turn_ends=("<|end_of_msg|>",),
    forms=(_CALLS.form("<|open|>tools<|sep|>", _write, gap=""),),
)
