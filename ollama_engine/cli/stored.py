"""MODEL as users type it: a path, a packaged model, a name of the store, or a name of the Hugging Face Hub."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ollama_engine.cli.store import model_store
from ollama_engine.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from ollama_engine.store.hub_names import is_hub_name
from ollama_engine.store.names import ModelName

if TYPE_CHECKING:
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["own_parameters", "stored_model", "stored_names"]

OWN_NAMES = {"num_predict": "max_tokens"}
"""Ollama's names of parameters -> ours, where they differ."""
NEGATIVE_IS_DEFAULT = ("num_predict", "seed")


def stored_model(model: str) -> StoredModel | None:
    """The model of the store that a text names; one of the Hub is downloaded first. None where it is no name of one.

    Raises UnsupportedModelError for a model with adapters, ModelFormatError for a damaged one, and what pulls raise.
    """
    try:
        name = ModelName.parse(model)
    except ConfigError:
        return None
    store = model_store()
    try:
        stored = store.find(name)
    except ModelNotFoundError:
        if not is_hub_name(name):
            return None
        from ollama_engine.cli.transfers import pull_model  # noqa: PLC0415 (asyncio: 23 ms)

        print(f"{name.short} is not in the store yet: downloading it to {store.folder}", file=sys.stderr)
        pull_model(store, model, insecure=False)
        stored = store.find(name)
    if stored.adapter_paths:
        raise UnsupportedModelError(f"model '{stored.name}' has an adapter (LoRA), which this engine does not apply")
    return stored


def stored_names() -> list[str]:
    """Names of the stored models, as `ollama-engine list` shows them."""
    return [entry.name.short.removesuffix(":latest") for entry in model_store().entries()]


def own_parameters(stored: StoredModel | None, names: Collection[str]) -> dict[str, Any]:
    """Parameters of a Modelfile by our names, those in `names` only; those that mean the default are left out."""
    parameters = {}
    for name, value in ({} if stored is None else stored.parameters).items():
        own = OWN_NAMES.get(name, name)
        if own in names and not (name in NEGATIVE_IS_DEFAULT and value < 0):
            parameters[own] = value
    return parameters
