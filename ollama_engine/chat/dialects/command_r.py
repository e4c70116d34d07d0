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

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.json_calls import CallKeys, JsonSection

__all__ = ["COMMAND_R7B", "COMMAND_R_PLUS"]

_KEYS = CallKeys(name=("tool_name", "name"), id=("tool_call_id",))
_FENCED = JsonSection("```", keys=_KEYS)

COMMAND_R_PLUS = Dialect(
    "command-r-plus",
    sections={"Action:" + space + "```json": _FENCED for space in (" ", "\n", "")},
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
)
COMMAND_R7B = Dialect(
    "command-r7b",
    thinking=(("<|START_THINKING|>", "<|END_THINKING|>"),),
    sections={"<|START_ACTION|>": JsonSection("<|END_ACTION|>", keys=_KEYS)},
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    sections_end_thinking=True,
    turn_ends=("<|END_OF_TURN_TOKEN|>",),
)
