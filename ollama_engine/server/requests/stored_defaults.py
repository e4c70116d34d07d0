"""Defaults of a stored model: its options, system message and first messages, which stand below a request's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ollama_engine.sample import SamplingParams
from ollama_engine.server.requests.options import read_options
from ollama_engine.store.stored_model import StoredModel

if TYPE_CHECKING:
    from ollama_engine.server.requests.prompts import Message

__all__ = ["conversation", "sampling_params"]

SAMPLING = frozenset(spec.name for spec in fields(SamplingParams))
UNBOUNDED = ("seed", "max_tokens")
"""Ollama's options say -1 for none of these."""
SYSTEM_ROLES = ("system", "developer")


def sampling_params(
    stored: StoredModel, requested: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> SamplingParams:
    """How to choose tokens: what a request wants, else what the model's parameters say, else the API's defaults.

    `requested` and `defaults` have the names of SamplingParams; None in them says nothing. Raises ConfigError.
    """
    chosen: dict[str, Any] = dict(defaults or {})
    for name, value in read_options(stored.parameters).sampling.items():
        own = "max_tokens" if name == "num_predict" else name
        if own in SAMPLING:
            chosen[own] = None if own in UNBOUNDED and value < 0 else value
    chosen |= {name: value for name, value in requested.items() if value is not None}
    return SamplingParams(**{name: value for name, value in chosen.items() if value is not None})


def conversation(
    stored: StoredModel, messages: Sequence[Mapping[str, Any]], instead: Sequence[str] = SYSTEM_ROLES
) -> list[Message]:
    """The messages of a request behind those of the model, and its system message where the request has none.

    `instead`: roles of a request's first message that stands in place of the model's system message.
    """
    whole = [*map(dict, stored.messages), *map(dict, messages)]
    if stored.system and (not messages or messages[0].get("role") not in instead):
        whole.insert(0, {"role": "system", "content": stored.system})
    return whole
