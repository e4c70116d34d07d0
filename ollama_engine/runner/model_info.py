"""ModelInfo: what a model file says of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ollama_engine.ml.metadata import MetadataValue
from ollama_engine.runner.loading import Loaded

__all__ = ["ModelInfo", "model_info"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model file says of itself, and what was decided for it.

    Attributes:
        path: of the file, or of the part that was named.
        architecture: which of the registered models it is.
        name: the model's own, None where the file has none.
        n_vocab: length of a row of logits.
        context_length: tokens that the model was trained for.
        n_parameters: numbers in all of its tensors.
        file_bytes: size of the file, all parts together.
        num_ctx: tokens that one request may hold.
        flash_attention: whether it is in use.
        threads: CPU threads in use.
        metadata: all GGUF keys and values; left out of the repr, for a vocabulary takes megabytes.
    """

    path: str
    architecture: str
    name: str | None
    n_vocab: int
    context_length: int
    n_parameters: int
    file_bytes: int
    num_ctx: int
    flash_attention: bool
    threads: int
    metadata: Mapping[str, MetadataValue] = field(repr=False)


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
        num_ctx=loaded.num_ctx,
        flash_attention=loaded.cache.flash_attention,
        threads=loaded.backend.threads,
        metadata=loaded.gguf.metadata,
    )
