"""Qwen2.5-VL's image input: arrays of a picture, and their embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.input import PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.qwen25vl.images import QwenImages
from ollama_engine.models.qwen25vl.preprocess import Preprocessor
from ollama_engine.models.qwen25vl.vision import Tower, read_options
from ollama_engine.models.qwen25vl.windows import Windows

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context


class Qwen25VLMultimodal(QwenImages):
    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        up, gated = scope.weights.get("v.blk.0.ffn_up.weight"), "v.blk.0.ffn_gate.weight" in scope.weights
        self.options = read_options(metadata, scope.options.n_embd, 0 if up is None else up.dim(1), gated=gated)
        self.tower = Tower(nn.Scope(scope.weights, self.options, "v.", scope.used))
        super().__init__(metadata, scope, Preprocessor(metadata, self.options))

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, rows * columns]."""
        rows, columns = image.grid
        groups = Windows.of(rows, columns, self.options.window).groups
        patches = ctx.from_floats(image.arrays["patches"])
        positions, places = ctx.from_ints(image.arrays["positions"]), ctx.from_ints(image.arrays["places"])
        return self.tower.forward(patches, positions, places, groups, self.options)
