"""ModelInfo: facts about a loaded model, from its file and from loading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ollama_engine.config import Pooling
from ollama_engine.ml.device.device_info import system_line
from ollama_engine.ml.gguf.metadata import MetadataValue
from ollama_engine.ml.weights.kernel_choice import kernels_of
from ollama_engine.models import Embeds, known_values
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.load.pooling_type import model_pooling

__all__ = ["ModelInfo", "model_info"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model: from its file, and decided while loading.

    Attributes:
        path: path of the file, or of the part that was named.
        architecture: name of the registered architecture.
        name: the model's own name, None where the file has none.
        n_vocab: length of a row of logits.
        n_embd: length of an embedding; None for a model that gives none.
        pooling: default pooling of `Engine.embed`; None for a model that only ranks, or whose file names a pooling that
            is unknown.
        generates: whether it answers prompts; False for models that give vectors or scores only.
        reads_images: whether prompts may have images.
        context_length: tokens that the model was trained for.
        n_parameters: numbers in all of its tensors.
        file_bytes: size of the file, all parts together.
        num_ctx: tokens that one request may hold.
        flash_attention: whether it is in use.
        threads: CPU threads in use.
        system: the devices in use and their features, such as instruction sets, in one line.
        kernels: what was chosen by measurement for weights of each type; nothing where a table decides.
        metadata: all GGUF keys and values; left out of the repr, for a vocabulary takes megabytes.
    """

    path: str
    architecture: str
    name: str | None
    n_vocab: int
    n_embd: int | None
    pooling: Pooling | None
    generates: bool
    reads_images: bool
    context_length: int
    n_parameters: int
    file_bytes: int
    num_ctx: int
    flash_attention: bool
    threads: int
    system: str
    kernels: tuple[str, ...]
    metadata: Mapping[str, MetadataValue] = field(repr=False, compare=False)  # arrays have no one truth value


def model_info(loaded: Loaded) -> ModelInfo:
    """The ModelInfo of a loaded model."""
    name, model = loaded.gguf.metadata.get("general.name"), loaded.model
    metadata, embeds = known_values(loaded.gguf.metadata), loaded.text_executor is not None
    return ModelInfo(
        path=loaded.path,
        architecture=loaded.gguf.architecture,
        name=name if isinstance(name, str) else None,
        n_vocab=model.n_vocab,
        n_embd=_n_embd(loaded),
        pooling=model_pooling(metadata, encoder=loaded.is_encoder) if embeds else None,
        generates=not loaded.is_encoder,
        reads_images=loaded.images is not None,
        context_length=model.context_length,
        n_parameters=sum(int(np.prod(t.shape, dtype=np.int64)) for t in loaded.gguf.tensors.values()),
        file_bytes=sum(os.path.getsize(f) for f in loaded.gguf.files),
        num_ctx=loaded.num_ctx,
        flash_attention=loaded.executor.flash_attention,
        threads=loaded.backend.threads,
        system=system_line(loaded.backend.devices),
        kernels=kernels_of(loaded.backend).measured,
        metadata=loaded.gguf.metadata,
    )


def _n_embd(loaded: Loaded) -> int | None:
    model = loaded.model
    if loaded.image_vectors is not None:
        return loaded.image_vectors.n_embd
    return model.n_embd if loaded.text_executor is not None and isinstance(model, Embeds) else None
