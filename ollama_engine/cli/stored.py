"""Models of the store and of the Hugging Face Hub, by the names that users type."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ollama_engine.cli.store import model_store
from ollama_engine.errors import ConfigError
from ollama_engine.store.hub_names import is_hub_name
from ollama_engine.store.lookup import FoundModel, find_model
from ollama_engine.store.names import ModelName

__all__ = ["MayPull", "found_or_pulled", "stored_names"]

MayPull = Callable[[ModelName], bool]
"""Says whether to download a model that is not in the store."""


def found_or_pulled(model: str, may_pull: MayPull = is_hub_name, *, insecure: bool = False) -> FoundModel | None:
    """The model that a text means, downloaded first where `may_pull` says so. None where it is no name of one.

    By default models of the Hub are downloaded. `insecure`: by http.

    Raises as `find_model` and pulls do.
    """
    found = find_model(model)
    name = _name(model)
    if found is not None or name is None or not may_pull(name):
        return found
    from ollama_engine.cli.transfers import pull_model  # noqa: PLC0415 (asyncio: 23 ms)

    store = model_store()
    print(f"{name.short} is not in the store yet: downloading it to {store.folder}", file=sys.stderr)
    pull_model(store, model, insecure=insecure)
    return find_model(model, store)


def _name(model: str) -> ModelName | None:
    try:
        return ModelName.parse(model)
    except ConfigError:
        return None


def stored_names() -> list[str]:
    """Names of the stored models, as `ollama-engine list` shows them."""
    return [entry.name.short.removesuffix(":latest") for entry in model_store().entries()]
