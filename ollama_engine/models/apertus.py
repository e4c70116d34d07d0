"""Apertus: `general.architecture` = apertus.

Each head of queries and keys is normalized; the feed-forward block has no gate, and an activation of its own, whose
numbers each layer has learned (xIELU, Huang and Schlag 2024). Source: Swiss AI Initiative 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.options import Options, extended, read_common
from ollama_engine.models.qwen3 import NormedAttention


@dataclass(frozen=True, kw_only=True)
class ApertusOptions(Options):
    """Options of Apertus."""

    curves: tuple[tuple[float, float, float, float], ...]
    """xIELU's numbers in each layer: alpha_n, alpha_p, beta, eps."""


class XieluMLP(nn.PlainMLP):
    """down(xielu(up x))."""

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        self.curve = scope.options.curves[scope.block]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(ops.xielu(self.up(x), *self.curve))


class Layer(PreNormLayer):
    attention = nn.Part(NormedAttention)
    mlp = nn.Part(XieluMLP)


class Apertus(Decoder):
    options: ApertusOptions
    architecture = "apertus"

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> ApertusOptions:
        o = read_common(metadata, n_vocab)
        columns = [metadata.f32s(f"xielu.{name}", o.n_layer) for name in ("alpha_n", "alpha_p", "beta", "eps")]
        return extended(o, ApertusOptions, curves=tuple(zip(*columns, strict=True)))
