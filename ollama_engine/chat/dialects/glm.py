"""GLM 4.5 to 4.7; Ling 3, Laguna and Spark write the same, Hunyuan 3 nearly.

    <think>They ask.</think>
    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

Line breaks are missing in some. Hunyuan's tags end in ":opensource", and it has a section around all calls. Format: the
templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.tagged_calls import TaggedCall
from ollama_engine.chat.dialects.tool_grammar import optional

__all__ = ["GLM", "HUNYUAN3"]

_CALL = TaggedCall(
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    gap=optional("\n"),
)
_CALLS = MarkedCalls(_CALL, end="</tool_call>")
GLM = Dialect(
    "glm",
    sections={"<tool_call>": _CALLS},
    turn_ends=("<|user|>", "<|observation|>"),
    forms=(_CALLS.form("<tool_call>", _CALL.write),),
)

_HUNYUAN3_CALL = TaggedCall(
    name_end="<tool_sep:opensource>",
    key="<arg_key:opensource>",
    key_end="</arg_key:opensource>",
    value="<arg_value:opensource>",
    value_end="</arg_value:opensource>",
    gap="\n",
)
_HUNYUAN3_CALLS = MarkedCalls(
    _HUNYUAN3_CALL,
    "<tool_call:opensource>",
    "</tool_call:opensource>",
    section_end="</tool_calls:opensource>",
)
HUNYUAN3 = Dialect(
    "hunyuan3",
    thinking=(("<think:opensource>", "</think:opensource>"),),
    sections={"<tool_calls:opensource>": _HUNYUAN3_CALLS},
    sections_end_thinking=True,
    turn_ends=("<｜hy_eos:opensource｜>",),
    forms=(_HUNYUAN3_CALLS.form("<tool_calls:opensource>", _HUNYUAN3_CALL.write),),
)
