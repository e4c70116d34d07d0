"""The model store that commands work on: the folder that OLLAMA_MODELS names, or Ollama's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ollama_engine.store.model_store import ModelStore

__all__ = ["FOLDER_VARIABLE", "ID_CHARACTERS", "model_store"]

FOLDER_VARIABLE = "OLLAMA_MODELS"
ID_CHARACTERS = 12
"""Characters of a digest that lists of models show."""


def model_store() -> ModelStore:
    """The store. Its folder need not exist."""
    from ollama_engine.store.model_store import ModelStore  # noqa: PLC0415 (`run demo` needs none)

    folder = os.environ.get(FOLDER_VARIABLE, "").strip(" \t\"'")
    return ModelStore(Path(folder).expanduser() if folder else None)
