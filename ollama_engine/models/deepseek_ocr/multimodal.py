"""DeepSeek-OCR's image input: arrays, and embeddings in the place of tokens. Nothing stands around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ollama_engine import nn
from ollama_engine.input import FloatArray, Input, Int32Array, MediaItem, PreparedImage
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.deepseek_ocr.preprocess import Preprocessor
from ollama_engine.models.deepseek_ocr.vision import VisionPart, read_options
from ollama_engine.models.images import ImageTokens, encode_tiles, input_ids, rows_of
from ollama_engine.models.media_tokens import token_id

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context


class DeepSeekOcrMultimodal(ImageTokens):
    placeholder = "<image>"

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        self.options = read_options(metadata, scope)
        self.vision = VisionPart(nn.Scope(scope.weights, self.options, used=scope.used))
        super().__init__(Preprocessor(metadata, self.options))
        self._token = token_id(metadata, "image_token_id", self.placeholder, input_ids(scope))

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, n_inputs]."""
        o = self.options
        x = self._squares(ctx, image.arrays["whole"], o.sam.grid)
        if "tiles" in image.arrays:
            x = ops.concat(self._squares(ctx, image.arrays["tiles"], o.tile // o.sam.patch_size), x, 1)
        return self.vision.in_order(x, ctx.from_ints(image.arrays["layout"]), o)

    def _squares(self, ctx: Context, patches: FloatArray | Int32Array, side: int) -> Tensor:
        """The embeddings of squares of `side` patches, one after the other."""
        squares = np.asarray(patches, np.float32)
        return encode_tiles(ctx, squares, lambda some: self.vision.forward(ctx, some, side, self.options))

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its rows."""
        return rows_of(item, self._token)
