"""MiniCPM 5.

    <function name="weather"><param name="city">Paris</param><param name="note"><![CDATA[a
    b]]></param></function>

Format: the template.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.tagged_calls import TaggedCall

__all__ = ["MINICPM5"]

_CALL = TaggedCall(name_end='">', key='<param name="', key_end='">', value_end="</param>", quotes=("<![CDATA[", "]]>"))
_CALLS = MarkedCalls(_CALL, end="</function>")

MINICPM5 = Dialect(
    "minicpm5",
    sections={'<function name="': _CALLS},
    turn_ends=("<|im_end|>",),
    forms=(_CALLS.form('<function name="', _CALL.write),),
)
