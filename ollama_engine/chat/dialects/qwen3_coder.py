"""Qwen3-Coder and Qwen 3.5; Nemotron 3 and Step 3.5 write the same.

    <tool_call>
    <function=weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Models forget <tool_call> at times, so <function=...> begins a call as well. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.tagged_calls import TaggedCall

__all__ = ["QWEN3_CODER"]

_CALL = TaggedCall(name_end=">", key="<parameter=", key_end=">", value_end="</parameter>", line_breaks=True)

QWEN3_CODER = Dialect(
    "qwen3-coder",
    sections={
        "<tool_call>": MarkedCalls(_CALL, "<function=", "</function>", section_end="</tool_call>"),
        "<function=": MarkedCalls(_CALL, end="</function>", section_end="</tool_call>"),
    },
    turn_ends=("<|im_end|>",),
)
