"""Models on disk and in registries: names, manifests, blobs. Ollama's own layout, read and written.

from ollama_engine.store import ModelStore

for model in ModelStore().list():
    print(model.name, model.size)
"""

from __future__ import annotations

from ollama_engine.store.names import ModelName
from ollama_engine.store.stored_model import StoredModel

__all__ = ["ModelName", "StoredModel"]
