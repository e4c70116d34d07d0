"""From a request to a prompt: messages in the engine's form, prompts with a suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.segments import Segment, Text, Tokens
from ollama_engine.server.errors import ApiError
from ollama_engine.store.showing import short_facts

if TYPE_CHECKING:
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["Message", "fill_in"]

Message = dict[str, Any]
"""In the engine's form."""

INFILL = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"))
"""Names of the tokens for what is filled in, in GGUF files and in older ones."""


def fill_in(name: str, stored: StoredModel, prompt: str, suffix: str, source: str | None) -> list[Segment]:
    """The prompt that asks for what stands between two texts, by the template of this source, if any.

    Raises ApiError for a model that cannot do that. Not for event loops: templates take time.
    """
    template = GoTemplate(source) if source else None
    if template is not None and template.reads("Suffix"):
        return [Text(template.fill_in(prompt, suffix), parse_special=True)]
    facts = short_facts(stored)
    metadata = {} if facts is None else facts.metadata
    ids = [
        next((metadata[key] for name in names if (key := f"tokenizer.ggml.{name}_token_id") in metadata), None)
        for names in INFILL
    ]
    if None in ids:
        raise ApiError(400, f'"{name}" does not support insert')
    pre, suf, mid = (Tokens([int(token)]) for token in ids if token is not None)
    return [pre, Text(prompt), suf, Text(suffix), mid]
