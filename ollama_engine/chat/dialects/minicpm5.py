"""MiniCPM 5.

    <function name="weather"><param name="city">Paris</param><param name="note"><![CDATA[a
    b]]></param></function>

Format: the template.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.tagged_calls import TaggedCall
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["MINICPM5"]

_CALL = TaggedCall(name_end='">', key='<param name="', key_end='">', value_end="</param>", quotes=("<![CDATA[", "]]>"))

MINICPM5 = Dialect(
    "minicpm5",
    sections={'<function name="': MarkedCalls(_CALL, end="</function>")},
    turn_ends=("<|im_end|>",),
    forms=(
        CallForm(
            _CALL.write,
            begin='<function name="',
            between='</function>\n<function name="',
            end="</function>",
            marker='<function name="',
        ),
    ),
)
