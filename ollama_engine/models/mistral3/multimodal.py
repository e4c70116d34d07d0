"""Mistral 3's image input: arrays, tokens around them, embeddings.

An image is its rows of embeddings, each followed by "[IMG_BREAK]", the last one by "[IMG_END]" instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.images import ImageTokens, input_ids, rows_of
from ollama_engine.models.media_tokens import token_id
from ollama_engine.models.mistral3.preprocess import Preprocessor
from ollama_engine.models.mistral3.vision import MERGER, VisionPart, read_options

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

IMAGE, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
BREAK_COPY = "v.token_embd.img_break"
"""A copy of a row of the text model's table in llama.cpp's files. It is not read: the token is."""


class PixtralMultimodal(ImageTokens):
    placeholder = IMAGE

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        self.options = read_options(metadata, scope.options, merges=MERGER in scope.weights)
        scope.used.add(BREAK_COPY)
        self.vision = VisionPart(nn.Scope(scope.weights, self.options, used=scope.used))
        super().__init__(Preprocessor(metadata, self.options))
        n_ids = input_ids(scope)
        self._image = token_id(metadata, "image_token_index", IMAGE, n_ids)
        self._break = token_id(metadata, "image_break_token_index", BREAK, n_ids)
        self._end = token_id(metadata, "image_end_token_index", END, n_ids)

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, rows * columns]."""
        patches, positions = ctx.from_floats(image.arrays["patches"]), ctx.from_ints(image.arrays["positions"])
        return self.vision.forward(patches, positions, ctx.from_floats(self.options.divisors), self.options)

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its rows with a token behind each."""
        rows, columns = item.grid
        written: list[Input] = []
        for row in range(rows):
            part = item.part(row * columns, (row + 1) * columns)
            written += [*rows_of(part, self._image), Input(self._break)]
        written[-1] = Input(self._end)
        return written
