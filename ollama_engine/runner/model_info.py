"""ModelInfo: what a model file says of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ollama_engine.ml.metadata import MetadataValue
from ollama_engine.runner.loading import Loaded

__all__ = ["ModelInfo", "model_info"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model file says of itself."""

    path: str
    architecture: str
    name: str | None
    n_vocab: int
    """Length of a row of logits."""
    context_length: int
    """Tokens that the model was trained for."""
    n_parameters: int
    file_bytes: int
    flash_attention: bool
    """Whether it is in use."""
    threads: int
    metadata: Mapping[str, MetadataValue]
    """All GGUF keys and values."""


def model_info(loaded: Loaded) -> ModelInfo:
    """Read it from a loaded model."""
    name = loaded.gguf.metadata.get("general.name")
    return ModelInfo(
        path=loaded.path,
        architecture=loaded.gguf.architecture,
        name=name if isinstance(name, str) else None,
        n_vocab=loaded.model.n_vocab,
        context_length=loaded.model.context_length,
        n_parameters=sum(int(np.prod(t.shape, dtype=np.int64)) for t in loaded.gguf.tensors.values()),
        file_bytes=sum(os.path.getsize(f) for f in loaded.gguf.files),
        flash_attention=loaded.cache.flash_attention,
        threads=loaded.backend.threads,
        metadata=loaded.gguf.metadata,
    )
