"""LLaVA: the text model is a Llama, and the file has a vision part or not."""

from __future__ import annotations

from collections.abc import Mapping

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import Multimodal
from ollama_engine.models.llama import Llama
from ollama_engine.models.llava.multimodal import LlavaMultimodal

VISION = "v.patch_embedding.weight"


class Llava(Llama):
    architecture = "llava"

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.multimodal: Multimodal | None = None
        if VISION in weights:
            scope = nn.Scope(weights, self.options)
            self.multimodal = LlavaMultimodal(metadata, scope, self.n_input_ids)
            self.unused_weights = tuple(name for name in self.unused_weights if name not in scope.used)
