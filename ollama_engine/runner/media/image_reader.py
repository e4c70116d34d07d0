"""ImageReader: image files to media items. Callers' threads read and prepare; the engine's thread encodes later.

An image is known by the hash of its file's bytes, so one that was seen before is neither decoded nor prepared again:
its size in a prompt is remembered, and usually its embeddings. An item holds the file's bytes, which are small, and
nothing computed of them; where its embeddings were dropped, they are computed from the bytes again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ollama_engine.input import FloatArray, MediaItem, PreparedImage
from ollama_engine.models import ImageTower, Multimodal
from ollama_engine.multimodal.image import read_image
from ollama_engine.runner.media.encoder import ImageEncoder, ImageMemory, prepared_bytes
from ollama_engine.runner.media.encoder_cache import EncoderCache
from ollama_engine.runner.media.recent import Recent

__all__ = ["ImageReader", "PromptImageReader", "content_hash"]

KNOWN_IMAGES = 1024
"""Images whose place in a prompt is remembered. With M-RoPE that takes up to 50 kB each."""

PREPARED_BYTES = 128 << 20
"""Host memory for images that were prepared and wait to be encoded; an image of 896x896 takes 10 MB. Others are
prepared again when their turn comes."""


def content_hash(data: bytes) -> int:
    """The SHA-256 of an image file's bytes. The same picture in another file has another hash."""
    import hashlib  # noqa: PLC0415 (only images need it)

    return int.from_bytes(hashlib.sha256(data).digest(), "little")


class ImageReader:
    """Makes media items, whose embeddings are encoded at first use and shared by all items of the same content."""

    def __init__(self, tower: ImageTower, encoder: ImageEncoder, cache: EncoderCache) -> None:
        self._tower = tower
        self.cache = cache
        self._encoder = encoder
        self._known: Recent[PreparedImage] = Recent(KNOWN_IMAGES)
        """Without arrays."""
        self._prepared: Recent[PreparedImage] = Recent(PREPARED_BYTES, prepared_bytes)

    @property
    def memory(self) -> ImageMemory:
        """What one image takes at most."""
        return self._encoder.memory

    def item(self, data: bytes) -> MediaItem:
        """The item of an image file. Raises ImageError where it cannot be read, or the model cannot take it."""
        key = content_hash(data)
        image = self._known.get(key)
        if image is None:
            image = self._prepare(data)
            self._prepared.put(key, image)
            image = replace(image, arrays={})
            self._known.put(key, image)
        return MediaItem(
            hash=key,
            n_inputs=image.n_inputs,
            embeddings=partial(self._embeddings, key, data),
            positions=image.positions,
            n_positions=image.n_positions,
            cross_attention=image.cross_attention,
            grid=image.grid,
            n_rows=image.n_rows,
            ready=partial(self.cache.__contains__, key),
        )

    def _prepare(self, data: bytes) -> PreparedImage:
        return self._tower.preprocess(read_image(data))

    def _embeddings(self, key: int, data: bytes) -> FloatArray:
        rows = self.cache.get(key)
        if rows is None:
            rows = self._encoder.encode(self._prepared.take(key) or self._prepare(data))
            self.cache.put(key, rows)
        return rows


class PromptImageReader(ImageReader):
    """The reader of a model whose prompts may hold images."""

    def __init__(self, multimodal: Multimodal, encoder: ImageEncoder, cache: EncoderCache) -> None:
        super().__init__(multimodal, encoder, cache)
        self.multimodal = multimodal
