"""LLaVA's image input: arrays, and embeddings in the place of tokens. Nothing stands around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.images import ImageTokens, input_ids, rows_of
from ollama_engine.models.llava.preprocess import Preprocessor
from ollama_engine.models.llava.vision import VisionPart, read_options

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context


class LlavaMultimodal(ImageTokens):
    placeholder = "<image>"

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        self.options = read_options(metadata, scope)
        self.vision = VisionPart(nn.Scope(scope.weights, self.options, used=scope.used))
        super().__init__(Preprocessor(metadata, self.options, newline=bool(self.vision.projector.newline)))
        # Rows of the embedding table that this id stands for are replaced. llama.cpp's files have no such token.
        token = metadata.u32("image_token_index", 0)
        self._token = token if token < input_ids(scope) else 0

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, n_inputs]."""
        patches, rows = ctx.from_floats(image.arrays["patches"]), ctx.from_ints(image.arrays["rows"])
        layout = ctx.from_ints(image.arrays["layout"]) if "layout" in image.arrays else None
        return self.vision.forward(patches, rows, layout, self.options)

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its rows."""
        return rows_of(item, self._token)
