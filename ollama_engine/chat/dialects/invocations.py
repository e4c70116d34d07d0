"""<invoke name="..."> with named parameters: MiniMax M2, DeepSeek V3.2 and V4, and their like.

    <minimax:tool_call>
    <invoke name="weather">
    <parameter name="city">Paris</parameter>
    </invoke>
    </minimax:tool_call>                                                                         (MiniMax M2)
    <｜DSML｜function_calls>
    <｜DSML｜invoke name="weather">
    <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>                                                  (DeepSeek V3.2; V4 says tool_calls)
    <seed:tool_call>
    <function=weather>
    <parameter=city>Paris</parameter>
    </function>
    </seed:tool_call>                                                                            (Seed-OSS)

Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.marked_calls import MarkedCalls
from ollama_engine.chat.dialects.tagged_calls import TaggedCall

__all__ = ["DEEPSEEK_V32", "MINIMAX_M2", "SEED_OSS"]

_MINIMAX_CALL = TaggedCall(name_end='">', key='<parameter name="', key_end='">', value_end="</parameter>", gap="\n")
_MINIMAX_CALLS = MarkedCalls(_MINIMAX_CALL, '<invoke name="', "</invoke>", section_end="</minimax:tool_call>")
MINIMAX_M2 = Dialect(
    "minimax-m2",
    sections={"<minimax:tool_call>": _MINIMAX_CALLS},
    turn_ends=("[e~[",),
    forms=(_MINIMAX_CALLS.form("<minimax:tool_call>", _MINIMAX_CALL.write),),
)

_DSML_CALL = TaggedCall(
    name_end='">',
    key='<｜DSML｜parameter name="',
    key_end='"',
    attributes=lambda is_string, _: f' string="{str(is_string).lower()}"',
    gap="\n",
    value=">",
    value_end="</｜DSML｜parameter>",
)
_DSML_SECTIONS = {
    f"<｜DSML｜{section}>": MarkedCalls(
        _DSML_CALL, '<｜DSML｜invoke name="', "</｜DSML｜invoke>", section_end=f"</｜DSML｜{section}>"
    )
    for section in ("function_calls", "tool_calls")
}
DEEPSEEK_V32 = Dialect(
    "deepseek-v3.2",
    sections=_DSML_SECTIONS,
    turn_ends=("<｜end▁of▁sentence｜>",),
    forms=tuple(calls.form(marker, _DSML_CALL.write) for marker, calls in _DSML_SECTIONS.items()),
)

_SEED_CALL = TaggedCall(name_end=">", key="<parameter=", key_end=">", value_end="</parameter>", gap="\n")
_SEED_CALLS = MarkedCalls(_SEED_CALL, "<function=", "</function>", section_end="</seed:tool_call>")
SEED_OSS = Dialect(
    "seed-oss",
    thinking=(("<seed:think>", "</seed:think>"),),
    sections={"<seed:tool_call>": _SEED_CALLS},
    turn_ends=("<seed:eos>",),
    forms=(_SEED_CALLS.form("<seed:tool_call>", _SEED_CALL.write),),
)
