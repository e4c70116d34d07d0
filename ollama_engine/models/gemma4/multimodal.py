"""Gemma 4's image input: arrays, tokens around them, embeddings.

An image is "<|image>", its embeddings, and "<image|>".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem, MediaTraits, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.gemma4.preprocess import Preprocessor
from ollama_engine.models.gemma4.unified import FIRST_NORM, UnifiedPart, read_unified_options
from ollama_engine.models.gemma4.vision import POSITIONS, VisionPart, read_options
from ollama_engine.models.images import ImageTokens, input_ids
from ollama_engine.models.media_tokens import token_id

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

IMAGE, BEGIN, END = "<|image|>", "<|image>", "<image|>"
PADDING = 0
"""The token whose embeddings for each layer the rows of an image have."""


class Gemma4Multimodal(ImageTokens):
    placeholder = IMAGE

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        positions = scope.weights.get(POSITIONS)
        unified = FIRST_NORM in scope.weights
        read = read_unified_options if unified else read_options
        self.options = read(metadata, scope.options.n_embd, 0 if positions is None else positions.dim(1))
        part = UnifiedPart if unified else VisionPart
        self.vision = part(nn.Scope(scope.weights, self.options, used=scope.used))
        self._preprocessor = Preprocessor(metadata, self.options)
        super().__init__(self._preprocessor)
        n_ids = input_ids(scope)
        self._begin = token_id(metadata, "image_start_token_id", BEGIN, n_ids)
        self._end = token_id(metadata, "image_end_token_id", END, n_ids)
        self._bidirectional = scope.options.bidirectional_images

    @property
    def traits(self) -> MediaTraits:
        """In large models the rows of an image attend to each other in local layers."""
        if not self._bidirectional:
            return MediaTraits()
        return MediaTraits(largest_group=self._preprocessor.most, bidirectional=True)

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, rows * columns]."""
        patches, (x, y) = ctx.from_floats(image.arrays["patches"]), image.arrays["places"]
        columns = image.grid[1] * self.options.pool
        return self.vision.forward(patches, (ctx.from_ints(x), ctx.from_ints(y)), columns, self.options)

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its rows between a token that begins and one that ends them."""
        n = item.n_inputs
        first = Input(PADDING, item, same_batch=n - 1 if self._bidirectional else 0)
        return [Input(self._begin), first, *[Input(PADDING)] * (n - 1), Input(self._end)]
