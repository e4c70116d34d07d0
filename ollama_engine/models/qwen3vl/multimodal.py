"""Image input of Qwen3-VL and Qwen3.5: arrays of a picture; its embeddings, and features for the first layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import MediaTraits, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.qwen3vl.preprocess import Preprocessor
from ollama_engine.models.qwen3vl.vision import POSITIONS, Tower, read_options
from ollama_engine.models.qwen25vl.images import QwenImages

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

__all__ = ["VISION_TENSOR", "Qwen3VLMultimodal"]

VISION_TENSOR = f"v.{POSITIONS}.weight"
"""A tensor that every file with a vision part has."""


class Qwen3VLMultimodal(QwenImages):
    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        text = scope.options
        self.options = read_options(metadata, text.n_embd, scope.weights)
        self._deepstack = len(self.options.deepstack)
        expected = metadata.u32("n_deepstack_layers", self._deepstack)
        if self._deepstack != expected or self._deepstack >= text.n_layer:
            raise ModelFormatError(
                f"the vision part has features for {self._deepstack} layers, and the text model takes them for "
                f"{expected} of its {text.n_layer} (n_deepstack_layers); expected as many, and fewer than all"
            )
        self.tower = Tower(nn.Scope(scope.weights, self.options, "v.", scope.used))
        super().__init__(metadata, scope, Preprocessor(metadata, self.options))

    @property
    def traits(self) -> MediaTraits:
        """Rows of an image attend to those before them only, so any cut into batches will do."""
        return replace(super().traits, deepstack=self._deepstack)

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd * (1 + layers with features), rows * columns]."""
        patches, positions = ctx.from_floats(image.arrays["patches"]), ctx.from_ints(image.arrays["positions"])
        corners = [
            (ctx.from_ints(place), ctx.from_floats(weight))
            for place, weight in zip(image.arrays["corners"], image.arrays["weights"], strict=True)
        ]
        return self.tower.forward(patches, positions, corners, self.options)
