"""GLM-OCR's image input: arrays of a picture, and their embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine import nn
from ollama_engine.input import PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.glm_ocr.preprocess import Preprocessor
from ollama_engine.models.glm_ocr.vision import VisionPart, read_options
from ollama_engine.models.qwen25vl.images import QwenImages

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context


class GlmOcrMultimodal(QwenImages):
    begin = "image_start_token_id", "<|begin_of_image|>"
    pad = "image_token_id", "<|image|>"
    end = "image_end_token_id", "<|end_of_image|>"

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        self.options = read_options(metadata, scope)
        self.vision = VisionPart(nn.Scope(scope.weights, self.options, used=scope.used))
        super().__init__(metadata, scope, Preprocessor(metadata, self.options))

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, rows * columns]."""
        patches, positions = ctx.from_floats(image.arrays["patches"]), ctx.from_ints(image.arrays["positions"])
        return self.vision.forward(patches, positions, self.options)
