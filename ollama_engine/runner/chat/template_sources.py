"""Which chat templates a model has: those of its file, or that of a family whose control tokens it knows.

A module of its own, without jinja2: whether a model can chat is asked by programs that then do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ollama_engine.chat.families import Family, fallback_family
from ollama_engine.runner.load.loading import Loaded

__all__ = ["DEFAULT", "TemplateSources", "is_steering", "sources_in_file", "template_sources"]

KEY = "tokenizer.chat_template"
DEFAULT = "default"


class TemplateSources(NamedTuple):
    """Sources by name, "default" among them as a rule; none where the model cannot chat."""

    by_name: dict[str, str]
    family: Family | None = None
    """The family that lent its template, where the file has none."""


def template_sources(loaded: Loaded) -> TemplateSources:
    """The chat templates of a loaded model."""
    found = sources_in_file(loaded.gguf.metadata)
    if found:
        return TemplateSources(found)
    family = fallback_family(lambda text: is_steering(loaded, text), str(loaded.gguf.metadata.get("general.name", "")))
    return TemplateSources({DEFAULT: family.source} if family else {}, family)


def is_steering(loaded: Loaded, text: str) -> bool:
    """Whether a text is one token that steers the model."""
    ids = loaded.tokenizer.encode(text, add_special=False)
    return len(ids) == 1 and loaded.tokenizer.is_steering(ids[0])


def sources_in_file(metadata: Mapping[str, Any]) -> dict[str, str]:
    """`tokenizer.chat_template` is the default one, `tokenizer.chat_template.NAME` are others."""
    sources = {DEFAULT: metadata[KEY]} if isinstance(metadata.get(KEY), str) else {}
    for key, value in metadata.items():
        if key.startswith(KEY + ".") and isinstance(value, str):
            sources[key[len(KEY) + 1 :]] = value
    return sources
