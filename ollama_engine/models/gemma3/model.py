"""Gemma 3 that reads images: the text model, and a vision part where the file has one."""

from __future__ import annotations

from collections.abc import Mapping

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import Multimodal
from ollama_engine.models.gemma3.multimodal import Gemma3Multimodal
from ollama_engine.models.gemma3.text import Gemma3Text

VISION = "v.patch_embedding.weight"


class Gemma3(Gemma3Text):
    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.multimodal: Multimodal | None = None
        if VISION in weights:
            scope = nn.Scope(weights, self.options)
            self.multimodal = Gemma3Multimodal(metadata, scope, self.n_input_ids)
            self.unused_weights = tuple(name for name in self.unused_weights if name not in scope.used)
