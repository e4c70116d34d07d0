"""Arrays of JSON objects between tags: Apriel and MiniMax M1, and Nemotron Nano 2.

    <tool_calls>[{"name": "weather", "arguments": {"city": "Paris"}}]</tool_calls>               (Apriel)
    <tool_calls>
    {"name": "weather", "arguments": {"city": "Paris"}}
    {"name": "get_time", "arguments": {}}
    </tool_calls>                                                                                (MiniMax M1)
    <TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}]</TOOLCALL>                   (Nemotron Nano 2)

Apriel's prompt opens the reasoning with a sentence, and "[BEGIN FINAL RESPONSE]" ends it. Format: the templates.
"""

from __future__ import annotations

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import JsonSection, write_object
from ollama_engine.chat.dialects.tool_grammar import CallForm

__all__ = ["APRIEL", "MINIMAX_M1", "NEMOTRON_V2"]

_TOOL_CALLS = {"<tool_calls>": JsonSection("</tool_calls>", begin="<tool_calls>")}

APRIEL = Dialect(
    "apriel",
    thinking=(("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),),
    sections=_TOOL_CALLS,
    dropped=("[END FINAL RESPONSE]",),
    turn_ends=("<|end|>",),
    forms=(CallForm(write_object(), begin="<tool_calls>[", between=", ", end="]</tool_calls>", marker="<tool_calls>"),),
)
MINIMAX_M1 = Dialect(
    "minimax-m1",
    sections=_TOOL_CALLS,
    turn_ends=("<end_of_sentence>",),
    forms=(
        CallForm(write_object(), begin="<tool_calls>\n", between="\n", end="\n</tool_calls>", marker="<tool_calls>"),
    ),
)
NEMOTRON_V2 = Dialect(
    "nemotron-v2",
    sections={"<TOOLCALL>": JsonSection("</TOOLCALL>", begin="<TOOLCALL>")},
    turn_ends=("<SPECIAL_12>",),
    forms=(CallForm(write_object(), begin="<TOOLCALL>[", between=", ", end="]</TOOLCALL>", marker="<TOOLCALL>"),),
)
