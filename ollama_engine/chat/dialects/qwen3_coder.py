"""Qwen3-Coder and Qwen 3.5; Nemotron 3 and Step 3.5 write the same.

    <tool_call>
    <function=weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Models forget <tool_call> at times, so <function=...> begins a call as well; and they call inside their reasoning,
without an end of it. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.tagged_calls import TaggedCall
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["QWEN3_CODER"]

_CALL = TaggedCall(name_end=">", key="<parameter=", key_end=">", value_end="</parameter>", line_breaks=True, gap="\n")

QWEN3_CODER = Dialect(
    "qwen3-coder",
    sections={
        "<tool_call>": MarkedCalls(_CALL, "<function=", "</function>", section_end="</tool_call>"),
        "<function=": MarkedCalls(_CALL, end="</function>", section_end="</tool_call>"),
    },
    calls_in_thinking=("<tool_call><function=", "<tool_call>\n<function="),
    turn_ends=("<|im_end|>",),
    forms=(
        CallForm(
            _CALL.write,
            begin="<tool_call>\n<function=",
            between="</function>\n</tool_call>\n<tool_call>\n<function=",
            end="</function>\n</tool_call>",
            marker="<tool_call>",
        ),
        CallForm(_CALL.write, begin="<function=", end="</function>", marker="<function="),
    ),
)
