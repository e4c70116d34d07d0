"""Reasoning on, off, and its levels: what callers ask for with `think`, as the variables of a template.

Templates have no common switch. Qwen3, GLM and SmolLM3 read `enable_thinking`, DeepSeek and Granite `thinking`,
gpt-oss `reasoning_effort`, Seed-OSS `thinking_budget`, Go templates `.Think` and `.ThinkLevel`, others nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from ollama_engine.chat.template import MessageTemplate
from ollama_engine.errors import ChatError, ConfigError, Option

__all__ = ["Think", "thinking_variables"]

Level = bool | Literal["low", "medium", "high"] | None
Think = Level | Sequence[Level]
"""A way to think, or several of them: the first that the template has a switch for is taken."""
LEVELS = ("low", "medium", "high")
SWITCHES = ("enable_thinking", "thinking", "Think")
LEVELS_READ = ("reasoning_effort", "ThinkLevel")
BUDGET = "thinking_budget"
TEMPLATE = Option("template")


def thinking_variables(template: MessageTemplate, think: Think) -> dict[str, Any]:
    """Variables that turn reasoning on (True), off (False) or to a level; None leaves it as the template has it.

    Raises ConfigError for another value, ChatError where the template has no such switch.
    """
    if not isinstance(think, (list, tuple)):
        return _variables(template, think)
    for level in think[:-1]:
        with suppress(ChatError):
            return _variables(template, level)
    return _variables(template, think[-1] if think else None)


def _variables(template: MessageTemplate, think: object) -> dict[str, Any]:
    if think is None:
        return {}
    switches = [name for name in SWITCHES if template.reads(name)]
    if isinstance(think, bool):
        if not switches and template.reads(BUDGET):
            return {} if think else {BUDGET: 0}
        if not switches and think != _always(template):
            raise ChatError(Option("think", think), f": {_without_switch(template)}")
        return dict.fromkeys(switches, think)
    if think not in LEVELS:
        raise ConfigError(Option("think"), f" is True, False, one of {', '.join(LEVELS)}, or None, got {think!r}")
    levels = [name for name in LEVELS_READ if template.reads(name)]
    if not levels:
        raise ChatError(Option("think", think), ": the chat template has no levels of reasoning")
    return {**dict.fromkeys(levels, think), **dict.fromkeys(switches, True)}


def _always(template: MessageTemplate) -> bool:
    """Whether the model of a template without a switch reasons."""
    return any(sign in template.source for sign in ("<think>", "[THINK]", "<|channel|>", *LEVELS_READ))


def _without_switch(template: MessageTemplate) -> str:
    if any(map(template.reads, LEVELS_READ)):
        return f"the model always reasons; the chat template has levels ({', '.join(LEVELS)})"
    always = "the model always reasons" if _always(template) else "the model does not reason"
    return f"{always}, as far as its chat template shows: it has no switch"
