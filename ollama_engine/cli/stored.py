"""Models of the store and of the Hugging Face Hub, by the names that users type."""

from __future__ import annotations

import sys

from ollama_engine.cli.store import model_store
from ollama_engine.errors import ConfigError
from ollama_engine.store.hub_names import is_hub_name
from ollama_engine.store.lookup import FoundModel, find_model
from ollama_engine.store.names import ModelName

__all__ = ["found_or_pulled", "stored_names"]


def found_or_pulled(model: str) -> FoundModel | None:
    """The model that a text means; one of the Hub is downloaded first. None where it is no name of one.

    Raises as `find_model` and pulls do.
    """
    found = find_model(model)
    if found is not None or not _is_of_hub(model):
        return found
    from ollama_engine.cli.transfers import pull_model  # noqa: PLC0415 (asyncio: 23 ms)

    store = model_store()
    print(f"{ModelName.parse(model).short} is not in the store yet: downloading it to {store.folder}", file=sys.stderr)
    pull_model(store, model, insecure=False)
    return find_model(model, store)


def _is_of_hub(model: str) -> bool:
    try:
        return is_hub_name(ModelName.parse(model))
    except ConfigError:
        return False


def stored_names() -> list[str]:
    """Names of the stored models, as `ollama-engine list` shows them."""
    return [entry.name.short.removesuffix(":latest") for entry in model_store().entries()]
