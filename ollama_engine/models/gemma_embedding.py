"""EmbeddingGemma: `general.architecture` = gemma-embedding; Ollama's files say gemma3.

Gemma 3 whose tokens attend to those on either side, and two dense layers behind the pooling. Source: Vera et al. 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine import nn
from ollama_engine.kvcache import LayerView
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.gemma3.text import Gemma3Text


@dataclass(frozen=True)
class DenseSizes:
    n_embd: int
    n_dense: int


class DenseLayers(nn.Module):
    """Two products without biases. llama.cpp's converter leaves them out by default."""

    up = nn.Linear("dense_2", "n_embd", "n_dense", optional=True)
    down = nn.Linear("dense_3", "n_dense", "n_embd", optional=True)

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        if self.up:
            scope.require(["dense_3.weight"], ("n_dense", "n_embd"))

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(self.up(x)) if self.up else x


def make_dense(scope: nn.Scope) -> DenseLayers:
    """The dense layers, whose hidden size is that of their tensors: Ollama's files have no key for it."""
    first = scope.weights.get("dense_2.weight")
    sizes = DenseSizes(scope.options.n_embd, 0 if first is None else first.dim(1))
    return DenseLayers(nn.Scope(scope.weights, sizes, used=scope.used))


class GemmaEmbedding(Gemma3Text):
    """Implements `models.TextEncoder` and `models.ProjectsVectors`."""

    architecture = "gemma-embedding"

    n_token_types = 0
    output = None  # type: ignore[assignment]  # it writes nothing
    dense = nn.Part(make_dense)

    @property
    def n_vector(self) -> int:
        """Length of a text's vector."""
        return self.options.n_embd

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""
        return self.hidden(inputs, cache)

    def project(self, pooled: Tensor) -> Tensor:
        """Build the graph: pooled hidden states f32 [n_embd, n] -> vectors f32 [n_embd, n]."""
        return self.dense.forward(pooled)
