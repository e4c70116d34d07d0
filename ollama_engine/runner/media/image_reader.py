"""ImageReader: image files to media items. Callers' threads read and prepare; the engine's thread encodes later."""

from __future__ import annotations

from ollama_engine.input import FloatArray, MediaItem, PreparedImage
from ollama_engine.models import Multimodal
from ollama_engine.multimodal.image import read_image
from ollama_engine.runner.media.encoder import ImageEncoder
from ollama_engine.runner.media.encoder_cache import EncoderCache

__all__ = ["ImageReader", "content_hash"]


def content_hash(data: bytes) -> int:
    """64 bits that identify the bytes of an image file. The same picture in another file has another hash."""
    import hashlib  # noqa: PLC0415 (only images need it)

    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


class ImageReader:
    """Makes media items, whose embeddings are encoded at first use and shared by all items of the same content."""

    def __init__(self, multimodal: Multimodal, encoder: ImageEncoder, cache: EncoderCache) -> None:
        self.multimodal = multimodal
        self._encoder = encoder
        self._cache = cache

    def item(self, data: bytes) -> MediaItem:
        """The item of an image file. Raises ImageError where it cannot be read, or the model cannot take it."""
        prepared = self._prepare(data)
        key = content_hash(data)
        return MediaItem(
            hash=key,
            n_inputs=prepared.n_inputs,
            embeddings=lambda: self._embeddings(key, data),
            positions=prepared.positions,
            n_positions=prepared.n_positions,
            cross_attention=prepared.cross_attention,
            grid=prepared.grid,
            n_rows=prepared.n_rows,
        )

    def _prepare(self, data: bytes) -> PreparedImage:
        return self.multimodal.preprocess(read_image(data))

    def _embeddings(self, key: int, data: bytes) -> FloatArray:
        rows = self._cache.get(key)
        if rows is None:
            rows = self._encoder.encode(self._prepare(data))
            self._cache.put(key, rows)
        return rows
