"""Qwen2.5-VL's image input: arrays, tokens around them, positions on several axes, embeddings.

An image is "<|vision_start|>", its rows of embeddings, "<|vision_end|>". Its embeddings stand at positions of their
own: time, row and column, counted from where the image begins. The next positions continue behind the longer side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem, MediaTraits, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.images import ImageTokens, input_ids, rows_of
from ollama_engine.models.media_tokens import token_id
from ollama_engine.models.qwen25vl.preprocess import Preprocessor
from ollama_engine.models.qwen25vl.vision import Tower, read_options
from ollama_engine.models.qwen25vl.windows import Windows

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

BEGIN, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
AXES = 4
"""Time, row, column, and one that ggml wants besides."""


class Qwen25VLMultimodal(ImageTokens):
    placeholder = BEGIN + PAD + END

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        up, gated = scope.weights.get("v.blk.0.ffn_up.weight"), "v.blk.0.ffn_gate.weight" in scope.weights
        self.options = read_options(metadata, scope.options.n_embd, 0 if up is None else up.dim(1), gated=gated)
        self.tower = Tower(nn.Scope(scope.weights, self.options, "v.", scope.used))
        self._preprocessor = Preprocessor(metadata, self.options)
        super().__init__(self._preprocessor)
        n_ids = input_ids(scope)
        self._begin = token_id(metadata, "vision_start_token_id", BEGIN, n_ids)
        self._pad = token_id(metadata, "image_token_id", PAD, n_ids)
        self._end = token_id(metadata, "vision_end_token_id", END, n_ids)

    def fit_context(self, num_ctx: int) -> None:
        """Have no picture take more than half of a context: larger ones are shrunk."""
        self._preprocessor.limit_rows(num_ctx // 2)

    @property
    def traits(self) -> MediaTraits:
        """Rows of an image attend to those before them only, so any cut into batches will do."""
        return MediaTraits(position_axes=AXES)

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, rows * columns]."""
        rows, columns = image.grid
        groups = Windows.of(rows, columns, self.options.window).groups
        patches = ctx.from_floats(image.arrays["patches"])
        positions, places = ctx.from_ints(image.arrays["positions"]), ctx.from_ints(image.arrays["places"])
        return self.tower.forward(patches, positions, places, groups, self.options)

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its rows between a token that begins and one that ends it."""
        return [Input(self._begin), *rows_of(item, self._pad), Input(self._end)]
