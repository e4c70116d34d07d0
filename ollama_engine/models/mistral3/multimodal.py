"""Mistral 3's image input: arrays, tokens around them, embeddings.

An image is its rows of embeddings, each followed by "[IMG_BREAK]", the last one by "[IMG_END]" instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem, MediaTraits, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.media_tokens import token_id
from ollama_engine.models.mistral3.preprocess import Preprocessor
from ollama_engine.models.mistral3.vision import MERGER, VisionPart, read_options

if TYPE_CHECKING:
    from PIL.Image import Image

    from ollama_engine.ml.graph.context import Context

IMAGE, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
BREAK_COPY = "v.token_embd.img_break"
"""A copy of a row of the text model's table in llama.cpp's files. It is not read: the token is."""


class PixtralMultimodal:
    """Implements `models.Multimodal`."""

    placeholder = IMAGE

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        self.options = read_options(metadata, scope.options, merges=MERGER in scope.weights)
        scope.used.add(BREAK_COPY)
        self.vision = VisionPart(nn.Scope(scope.weights, self.options, used=scope.used))
        self._preprocessor = Preprocessor(metadata, self.options)
        n_ids = scope.weights["token_embd.weight"].dim(1)
        self._image = token_id(metadata, "image_token_index", IMAGE, n_ids)
        self._break = token_id(metadata, "image_break_token_index", BREAK, n_ids)
        self._end = token_id(metadata, "image_end_token_index", END, n_ids)

    @property
    def traits(self) -> MediaTraits:
        """Rows of an image attend to those before them only, so any cut into batches will do."""
        return MediaTraits()

    def preprocess(self, image: Image) -> PreparedImage:
        """Arrays `patches` and `positions` of a picture."""
        return self._preprocessor.prepare(image)

    def largest_image(self) -> PreparedImage:
        """A square with the longest edge that pictures are resized to."""
        return self._preprocessor.largest()

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, rows * columns]."""
        patches, positions = ctx.from_floats(image.arrays["patches"]), ctx.from_ints(image.arrays["positions"])
        return self.vision.forward(patches, positions, ctx.from_floats(self.options.divisors), self.options)

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        """Replace each image by its rows with a token behind each."""
        found: list[Input] = []
        for given in inputs:
            found += [given] if given.media is None else self._rows(given.media)
        return found

    def _rows(self, item: MediaItem) -> list[Input]:
        rows, columns = item.grid
        found: list[Input] = []
        for row in range(rows):
            part = item.part(row * columns, (row + 1) * columns)
            found += [Input(self._image, part), *[Input(self._image)] * (columns - 1), Input(self._break)]
        found[-1] = Input(self._end)
        return found
