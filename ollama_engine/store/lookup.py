"""Models by the names that people write: a packaged one, a path, or a name of the store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ollama_engine.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from ollama_engine.store.hub_names import HUB_HOSTS

if TYPE_CHECKING:
    from ollama_engine.store.model_store import ModelStore
    from ollama_engine.store.names import ModelName
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["DEMO", "DEMO_VISION", "FoundModel", "find_model", "how_to_get", "is_packaged", "packaged_model"]

DEMO, DEMO_VISION = "demo", "demo-vision"


def is_packaged(name: ModelName) -> bool:
    """Whether a model of this name comes with the package."""
    return name.short.lower().removesuffix(":latest") in (DEMO, DEMO_VISION)


class FoundModel(NamedTuple):
    """A GGUF file, and what the store knows of the model, if it is the store's."""

    path: str
    stored: StoredModel | None = None


def packaged_model(name: str) -> FoundModel:
    """The packaged model of this name, DEMO or DEMO_VISION."""
    from ollama_engine import demo  # noqa: PLC0415 (pathlib, which an Engine needs for nothing else)

    return FoundModel(str(demo.path() if name == DEMO else demo.vision_path()))


def find_model(model: str, store: ModelStore | None = None) -> FoundModel | None:
    """The model that a text means; None where there is none. For a file with the name of a packaged model, say ./demo;
    where the store has a model of that name, demo:latest is the store's.

    `store`: Ollama's folder if None. Raises UnsupportedModelError for a stored model with adapters, ModelFormatError
    for a damaged one.
    """
    if model in (DEMO, DEMO_VISION):
        return packaged_model(model)
    if os.path.lexists(model):
        return FoundModel(model)
    from ollama_engine.store.model_store import ModelStore  # noqa: PLC0415 (10 ms, which a path does not need)

    try:
        stored = (store or ModelStore()).find(model)
    except (ConfigError, ModelNotFoundError):
        packaged = model.lower().removesuffix(":latest")  # as /api/tags names them
        return packaged_model(packaged) if packaged in (DEMO, DEMO_VISION) else None
    if stored.adapter_paths:
        raise UnsupportedModelError(f"model '{stored.name}' has an adapter (LoRA), which this engine does not apply")
    return FoundModel(str(stored.model_path), stored)


def how_to_get(model: str) -> str:
    """How to get a model that is not there, for the end of a message; "" for a text that looks like a path."""
    begin, slash, name = model.partition("/")
    if not begin or begin.startswith((".", "~")) or model.endswith(".gguf") or "\\" in model:
        return ""
    kinds = f"a model is a GGUF file, {DEMO} or {DEMO_VISION}, or a name that ollama-engine list shows"
    if begin.lower() in HUB_HOSTS and not name.partition("/")[2]:
        return f"; {kinds}; a model of the Hugging Face Hub is {begin}/USER/REPOSITORY"
    if slash and "/" not in name:
        return (
            f"; {kinds}; ollama-engine pull hf.co/{model} downloads its GGUF files from the Hugging Face Hub, "
            f"ollama-engine pull {model} from Ollama's registry, if they have it"
        )
    whose = "its repository has GGUF files" if slash else "a registry has it"
    return f"; {kinds}; ollama-engine pull {model} downloads it, if {whose}"
