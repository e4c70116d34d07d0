"""How the families since Qwen2-VL read images: tokens around them, positions on several axes, sizes by the context.

An image is a token that begins it, its rows of embeddings, and one that ends it. Its embeddings stand at positions of
their own: time, row and column, counted from where the image begins. The next ones continue behind the longer side.
"""

from __future__ import annotations

from typing import ClassVar

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem, MediaTraits
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.images import ImageReader, ImageTokens, input_ids, rows_of
from ollama_engine.models.media_tokens import token_id
from ollama_engine.models.qwen25vl.blocks import BlockPreprocessor

__all__ = ["AXES", "QwenImageReader", "QwenImages"]

AXES = 4
"""Time, row, column, and one that ggml wants besides."""


class QwenImages(ImageTokens):
    """Implements `models.Multimodal` but for its graph."""

    begin: ClassVar[tuple[str, str]] = "vision_start_token_id", "<|vision_start|>"
    """(key of a token's id, its text, by which it is found in files without the key)."""
    pad: ClassVar[tuple[str, str]] = "image_token_id", "<|image_pad|>"
    """The token that stands where the embeddings are."""
    end: ClassVar[tuple[str, str]] = "vision_end_token_id", "<|vision_end|>"

    def __init__(self, metadata: Metadata, scope: nn.Scope, preprocessor: BlockPreprocessor) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        super().__init__(preprocessor)
        self._preprocessor = preprocessor
        tokens = self.begin, self.pad, self.end
        self.placeholder = "".join(text for _, text in tokens)
        self._begin, self._pad, self._end = (token_id(metadata, *token, input_ids(scope)) for token in tokens)

    def fit_context(self, num_ctx: int) -> None:
        """Have no picture take more than half of a context: larger ones are shrunk."""
        self._preprocessor.limit_rows(num_ctx // 2)

    @property
    def traits(self) -> MediaTraits:
        """Rows of an image attend to those before them only, so any cut into batches will do."""
        return MediaTraits(position_axes=AXES)

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its rows between a token that begins and one that ends it."""
        return [Input(self._begin), *rows_of(item, self._pad), Input(self._end)]


class QwenImageReader(ImageReader):
    """Stands before a text model whose `vision_part` is a QwenImages."""

    multimodal: QwenImages | None

    def fit_context(self, num_ctx: int) -> None:
        """Published limits let a photograph take 16,384 inputs, more than most contexts have."""
        if self.multimodal is not None:
            self.multimodal.fit_context(num_ctx)
