"""LLaVA's image input: arrays, and embeddings in the place of tokens. Nothing stands around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.input import Input, MediaTraits, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.llava.preprocess import Preprocessor
from ollama_engine.models.llava.vision import VisionPart, read_options

if TYPE_CHECKING:
    from PIL.Image import Image

    from ollama_engine.ml.graph.context import Context


class LlavaMultimodal:
    """Implements `models.Multimodal`."""

    placeholder = "<image>"

    def __init__(self, metadata: Metadata, scope: nn.Scope, n_input_ids: int) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        self.options = read_options(metadata, scope)
        self.vision = VisionPart(nn.Scope(scope.weights, self.options, used=scope.used))
        self._preprocessor = Preprocessor(metadata, self.options, newline=bool(self.vision.projector.newline))
        # Rows of the embedding table that this id stands for are replaced. llama.cpp's files have no such token.
        token = metadata.u32("image_token_index", 0)
        self._token = token if token < n_input_ids else 0

    @property
    def traits(self) -> MediaTraits:
        """Rows of an image attend to those before them only, so any cut into batches will do."""
        return MediaTraits()

    def preprocess(self, image: Image) -> PreparedImage:
        """Arrays `patches`, `rows` and, with tiles, `layout` of a picture."""
        return self._preprocessor.prepare(image)

    def largest_image(self) -> PreparedImage:
        """The one with the most tiles."""
        return self._preprocessor.largest()

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, n_inputs]."""
        patches, rows = ctx.from_floats(image.arrays["patches"]), ctx.from_ints(image.arrays["rows"])
        layout = ctx.from_ints(image.arrays["layout"]) if "layout" in image.arrays else None
        return self.vision.forward(patches, rows, layout, self.options)

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        """Replace each image by its rows."""
        found: list[Input] = []
        for given in inputs:
            if given.media is None:
                found.append(given)
            else:
                found += [Input(self._token, given.media), *[Input(self._token)] * (given.media.n_inputs - 1)]
        return found
