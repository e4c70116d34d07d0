"""What a model with a vision tower needs from loading."""

from __future__ import annotations

from ollama_engine.input import MediaTraits
from ollama_engine.ml.backend import Backend
from ollama_engine.models import Embeds, Model, Multimodal, ReadsMedia
from ollama_engine.runner.load.executor import Executor
from ollama_engine.runner.media.encoder import ImageEncoder
from ollama_engine.runner.media.encoder_cache import EncoderCache
from ollama_engine.runner.media.image_reader import ImageReader

__all__ = ["make_image_reader", "reads_media", "traits_of"]


def reads_media(model: Model) -> Multimodal | None:
    """The part of a model that reads images; None where the architecture or the file has none."""
    return model.multimodal if isinstance(model, ReadsMedia) else None


def traits_of(model: Model) -> MediaTraits | None:
    """How the model wants images batched; None for one that reads none."""
    multimodal = reads_media(model)
    return None if multimodal is None else multimodal.traits


def make_image_reader(backend: Backend, model: Model, executor: Executor, cache_bytes: int) -> ImageReader | None:
    """The reader of image files for a model that takes them. Its encoder shares the memory of the executor's graphs.

    `cache_bytes`: host memory for embeddings. Takes the memory for the largest image; raises as `ImageEncoder.reserve`.
    """
    multimodal = reads_media(model)
    if multimodal is None:
        return None
    assert isinstance(model, Embeds), "a model that reads images takes embeddings"
    encoder = ImageEncoder(backend, multimodal, model.n_embd, executor.moved)
    encoder.reserve()
    return ImageReader(multimodal, encoder, EncoderCache(cache_bytes))
