"""Models on disk and in registries: names, manifests, blobs. Ollama's own layout, read and written.

    from ollama_engine.store import ModelStore

    for model in ModelStore().list():
        print(model.name, model.size)

- `names`, `stored_model`: what a model is called, and what is known of it before it is loaded
- `model_store`, `manifest`, `reading`, `blobs`: the folder
- `gguf_facts`, `showing`: what a model's files say of it, and how that is shown
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.lazy import lazy_names

if TYPE_CHECKING:
    from ollama_engine.store.model_store import ModelStore
    from ollama_engine.store.names import ModelName
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["ModelName", "ModelStore", "StoredModel"]

_HOMES = {"ModelName": "names", "ModelStore": "model_store", "StoredModel": "stored_model"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
