"""Cohere's Command R: R and R+, and R7B with what came after it.

    Plan: I look.
    Action: ```json
    [{"tool_name": "weather", "parameters": {"city": "Paris"}}]
    ```                                                                                          (R, R+)
    <|START_THINKING|>They ask.<|END_THINKING|><|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris"}}
    ]<|END_ACTION|>                                                                              (R7B, Command A)
    <|START_RESPONSE|>It rains.<|END_RESPONSE|>

R+ calls "directly-answer" where it wants no tool; offer such a tool, or that call comes back as malformed. Format: the
templates, and Cohere's "prompting" guides.
"""

from __future__ import annotations

import json

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import CallKeys, JsonSection, write_object
from ollama_engine.chat.dialects.tool_grammar import CallForm, Json, Part, Pattern, object_schema
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["COMMAND_R7B", "COMMAND_R_PLUS"]

_KEYS = CallKeys(name=("tool_name", "name"), id=("tool_call_id",))
_FENCED = JsonSection("```", keys=_KEYS)
_MARKERS = tuple(f"Action:{space}```json" for space in (" ", "\n", ""))


def _write_r7b(tool: ToolDefinition) -> list[Part]:
    name = f'", "tool_name": {json.dumps(tool.name)}, "parameters": '
    return ['{"tool_call_id": "', Pattern("[0-9]{1,3}"), name, Json(object_schema(tool)), "}"]


COMMAND_R_PLUS = Dialect(
    "command-r-plus",
    sections=dict.fromkeys(_MARKERS, _FENCED),
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
    forms=tuple(
        CallForm(
            write_object("tool_name", "parameters"),
            begin=f"{marker}\n[\n    ",
            between=",\n    ",
            end="\n]\n```",
            marker=marker,
        )
        for marker in _MARKERS
    ),
)
COMMAND_R7B = Dialect(
    "command-r7b",
    thinking=(("<|START_THINKING|>", "<|END_THINKING|>"),),
    sections={"<|START_ACTION|>": JsonSection("<|END_ACTION|>", keys=_KEYS)},
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    sections_end_thinking=True,
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
    forms=(
        CallForm(
            _write_r7b,
            begin="<|START_ACTION|>[\n    ",
            between=",\n    ",
            end="\n]<|END_ACTION|>",
            marker="<|START_ACTION|>",
        ),
    ),
)
