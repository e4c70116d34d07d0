"""The model store that commands work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ollama_engine.store.model_store import ModelStore

__all__ = ["ID_CHARACTERS", "model_store"]

ID_CHARACTERS = 12
"""Characters of a digest that lists of models show."""


def model_store() -> ModelStore:
    """The store. Its folder need not exist."""
    from ollama_engine.store.model_store import ModelStore  # noqa: PLC0415 (`run demo` needs none)

    return ModelStore()
