"""Llama 4 that reads images: the text model, and a vision part where the file has one."""

from __future__ import annotations

from collections.abc import Mapping

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import Multimodal
from ollama_engine.models.llama4.multimodal import Llama4Multimodal
from ollama_engine.models.llama4.text import Llama4Text

VISION = "v.patch_embedding.weight"


class Llama4(Llama4Text):
    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.multimodal: Multimodal | None = None
        if VISION in weights:
            scope = nn.Scope(weights, self.options)
            self.multimodal = Llama4Multimodal(metadata, scope)
            self.unused_weights = tuple(name for name in self.unused_weights if name not in scope.used)
