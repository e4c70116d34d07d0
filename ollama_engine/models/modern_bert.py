"""ModernBERT: `general.architecture` = modern-bert.

Norms without biases before attention and feed-forward, but none before the first attention; rotary positions; every
third layer attends to the whole text, the others to a window. Source: Warner et al. 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.bidirectional import BidirectionalOptions, BidirectionalTransformer, read_bidirectional
from ollama_engine.models.fused import FusedAttention, FusedMLP
from ollama_engine.models.options import read_local_ropes, read_windows

PERIOD = 3
"""The first of every 3 layers attends to the whole text, where the file does not say otherwise."""


class GeGLU(FusedMLP):
    """Gated by the exact form of GELU."""

    activation = "gelu_erf"


MLPS = {"gelu": GeGLU, "silu": FusedMLP}
"""Feed-forward blocks by `hidden_activation`."""


@dataclass(frozen=True, kw_only=True)
class ModernBertOptions(BidirectionalOptions):
    mlp: type[FusedMLP]


def make_mlp(scope: nn.Scope) -> FusedMLP:
    """The feed-forward block, with the activation that the file asks for."""
    mlp: FusedMLP = scope.options.mlp(scope)
    return mlp


class Layer(nn.Module):
    """One block: attention, then feed-forward, each after a norm and with a residual."""

    attn_norm = nn.LayerNorm("attn_norm", "n_embd", optional=True)
    attention = nn.Part(FusedAttention)
    ffn_norm = nn.LayerNorm("ffn_norm", "n_embd")
    mlp = nn.Part(make_mlp)

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        if scope.prefix != "blk.0.":
            scope.require(["attn_norm.weight"], ("n_embd",))

    def forward(self, x: Tensor, step: LayerStep, o: ModernBertOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = self.attention.forward(self.attn_norm(x, o.norm_eps) if self.attn_norm else x, step, o)
        x = step.output_rows(a) + step.output_rows(x)
        return self.mlp.forward(self.ffn_norm(x, o.norm_eps)) + x


class ModernBert(BidirectionalTransformer):
    architecture = "modern-bert"
    head_activation = "gelu_erf"
    head_pooling = "mean"  # as llama.cpp takes it

    layers = nn.Blocks(Layer, "n_layer")
    output_norm = nn.LayerNorm("output_norm", "n_embd")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> ModernBertOptions:
        activation = metadata.str("hidden_activation", "gelu")
        if activation not in MLPS:
            raise UnsupportedModelError(f"hidden_activation is {activation!r}; supported: {', '.join(MLPS)}")
        o = read_bidirectional(metadata, n_vocab)
        windows = read_windows(metadata, o.n_layer, PERIOD, full_first=True)
        ropes = read_local_ropes(metadata, o.rope, windows, base=o.rope.base)
        return ModernBertOptions(**vars(replace(o, windows=windows, ropes=ropes)), mlp=MLPS[activation])

    def finish(self, x: Tensor) -> Tensor:
        return self.output_norm(x, self.options.norm_eps)
