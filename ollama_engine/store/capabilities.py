"""Capabilities of a model, as far as its templates and its vocabulary show."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ollama_engine.errors import ChatError

__all__ = ["TEMPLATE_ABILITIES", "file_abilities", "go_abilities"]

TEMPLATE_ABILITIES: Final = frozenset({"tools", "thinking", "insert"})
"""Capabilities that a Modelfile's template decides, where there is one."""

_INFILL_KEYS: Final = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")
_THINK_VARIABLES: Final = ("enable_thinking", "thinking", "thinking_budget", "reasoning_effort")


def file_abilities(metadata: Mapping[str, Any], template: str | None) -> frozenset[str]:
    """The capabilities "tools", "thinking" and "insert" of a GGUF file with this chat template in Jinja.

    Tools: the template reads them. Thinking: the template has a switch for it, or marks reasoning as a dialect that is
    known does. Insert: the vocabulary has tokens for the text before and behind.
    """
    insert = {"insert"} if any(key in metadata for key in _INFILL_KEYS) else set()
    return frozenset(insert | _jinja_abilities(template or ""))


@lru_cache(maxsize=128)  # lists of models ask for all of them, and parsing takes milliseconds
def _jinja_abilities(source: str) -> frozenset[str]:
    from ollama_engine.chat import dialects, template  # noqa: PLC0415 (jinja2: 0.1 s of the start of `create`)

    if not source:
        return frozenset()
    try:
        reads = template.ChatTemplate(source).reads
    except ChatError:
        return frozenset()
    thinks = any(map(reads, _THINK_VARIABLES)) or dialects.detect(source).thinks
    return frozenset(({"tools"} if reads("tools") else set()) | ({"thinking"} if thinks else set()))


@lru_cache(maxsize=128)
def go_abilities(source: str) -> frozenset[str]:
    """The capabilities "tools", "thinking" and "insert" of a Modelfile's template, by the fields that it reads."""
    from ollama_engine.chat.go_template import GoTemplate  # noqa: PLC0415 (jinja2, too)

    try:
        template = GoTemplate(source)
    except ChatError:
        return frozenset()
    fields = {"tools": ("Tools",), "insert": ("Suffix",), "thinking": ("Think", "ThinkLevel", "Thinking")}
    return frozenset(name for name, read in fields.items() if any(map(template.reads, read)))
