"""Which dialect a model speaks, from its chat template and its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.chat.dialects.base import Dialect
from ollama_engine.chat.dialects.hermes import HERMES
from ollama_engine.chat.dialects.plain_json import PLAIN_JSON
from ollama_engine.chat.dialects.plain_text import PLAIN_TEXT
from ollama_engine.errors import ConfigError, Option

__all__ = ["DIALECTS", "detect", "named"]

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (HERMES, PLAIN_JSON, PLAIN_TEXT)}
"""Every dialect by its name."""

_SIGNS: tuple[tuple[Dialect, tuple[str, ...]], ...] = ((HERMES, ("<tool_call>",)),)
"""Dialects and the texts that all stand in a template of theirs; the first row that fits decides."""

# Texts that end the assistant's turn in one family of templates or another.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_text|>")


def detect(template_source: str | None, metadata: Mapping[str, Any] | None = None) -> Dialect:
    """The dialect of a template; plain JSON where it offers tools in no way known here, plain text where in none.

    metadata: a GGUF file's, for files without a template.
    """
    source = template_source or ""
    stops = tuple(end for end in _TURN_ENDS if end in source)
    for dialect, signs in _SIGNS:
        if all(sign in source for sign in signs):
            return replace(dialect, turn_ends=stops)
    return replace(PLAIN_JSON if "tools" in source else PLAIN_TEXT, turn_ends=stops)


def named(name: str) -> Dialect:
    """The dialect of that name, for models whose template does not tell."""
    if name not in DIALECTS:
        raise ConfigError(Option("dialect"), f" must be one of {', '.join(sorted(DIALECTS))}, got {name!r}")
    return DIALECTS[name]
