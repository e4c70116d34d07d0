"""Loading of vision towers."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.input import MediaTraits
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.models import Embeds, EmbedsImages, Model, Multimodal, ReadsMedia
from ollama_engine.runner.media.encoder import ImageEncoder
from ollama_engine.runner.media.encoder_cache import EncoderCache
from ollama_engine.runner.media.image_reader import ImageReader, PromptImageReader

__all__ = [
    "ImageVectors",
    "images_of_batch",
    "make_image_reader",
    "make_image_vectors",
    "reads_media",
    "traits_beside_text",
    "traits_of",
]


def reads_media(model: Model) -> Multimodal | None:
    """The part of a model that reads images; None where the architecture or the file has none."""
    return model.multimodal if isinstance(model, ReadsMedia) else None


def traits_of(model: Model) -> MediaTraits | None:
    """How the model wants images batched; None for one that reads none."""
    multimodal = reads_media(model)
    return None if multimodal is None else multimodal.traits


def traits_beside_text(model: Model) -> MediaTraits | None:
    """The same for texts to embed, where a batch holds whole texts; None where images cannot be among them.

    Images for cross-attention lie in a cache, and those whose rows attend to each other need its masks.
    """
    traits = traits_of(model)
    stored = traits is not None and (traits.bidirectional or traits.groups_per_batch is not None)
    return None if stored else traits


def images_of_batch(model: Model) -> int:
    """Most new images of one batch in layers with cross-attention."""
    traits = traits_of(model)
    return 1 if traits is None else traits.groups_per_batch or 1


def make_image_reader(backend: Backend, model: Model, cache_bytes: int) -> PromptImageReader | None:
    """The reader of image files for a model that takes them. Its encoder shares the memory of the backend's graphs.

    `cache_bytes`: host memory for embeddings. Takes the memory for the largest image; raises as `ImageEncoder.reserve`.
    """
    multimodal = reads_media(model)
    if multimodal is None:
        return None
    assert isinstance(model, Embeds), "a model that reads images takes embeddings"
    encoder = ImageEncoder(backend, multimodal, multimodal.traits.row_width(model.n_embd))
    encoder.reserve()
    return PromptImageReader(multimodal, encoder, EncoderCache(cache_bytes))


@dataclass(frozen=True, slots=True)
class ImageVectors:
    """Vectors of images, from a model that gives them."""

    reader: ImageReader
    """Makes items of image files, whose embeddings are one row."""
    n_embd: int
    """Length of a vector."""


def make_image_vectors(backend: Backend, model: Model, cache_bytes: int) -> ImageVectors | None:
    """None for a model that gives no vectors of images. Takes the memory for an image; raises NoMemoryError."""
    if not isinstance(model, EmbedsImages):
        return None
    encoder = ImageEncoder(backend, model.image_tower, model.n_image_embd)
    encoder.reserve()
    return ImageVectors(ImageReader(model.image_tower, encoder, EncoderCache(cache_bytes)), model.n_image_embd)
