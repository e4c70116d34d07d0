"""Qwen2.5-VL: the text model, and a vision part where the file has one."""

from __future__ import annotations

from collections.abc import Mapping

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.qwen25vl.multimodal import Qwen25VLMultimodal
from ollama_engine.models.qwen25vl.text import Qwen25VLText

VISION = "v.patch_embd_0.weight"


class Qwen25VL(Qwen25VLText):
    architecture = "qwen25vl"

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.multimodal: Qwen25VLMultimodal | None = None
        if VISION in weights:
            scope = nn.Scope(weights, self.options)
            self.multimodal = Qwen25VLMultimodal(metadata, scope)
            self.unused_weights = tuple(name for name in self.unused_weights if name not in scope.used)

    def fit_context(self, num_ctx: int) -> None:
        """Published limits let a photograph take 16,384 inputs, more than most contexts have."""
        if self.multimodal is not None:
            self.multimodal.fit_context(num_ctx)
