"""Llama 1 to 3.x, Mistral and Mixtral: `general.architecture` = llama.

The usual decoder, with rotations of adjacent pairs and a SwiGLU feed-forward block, or a mixture of such blocks.
Sources: Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral) and 2024 (Mixtral).
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.options import Options, read_llama, read_windows


class SparseMLP(nn.Mixture):
    """Mixtral's mixture: the weighted sum of the chosen experts' SwiGLU."""

    router = nn.Linear("ffn_gate_inp", "n_embd", "n_expert")
    gate = nn.ExpertLinear("ffn_gate_exps", "n_embd", "n_ff", "n_expert")
    up = nn.ExpertLinear("ffn_up_exps", "n_embd", "n_ff", "n_expert")
    down = nn.ExpertLinear("ffn_down_exps", "n_ff", "n_embd", "n_expert")

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(_as_meant(scope))

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        return nn.route(self.router(x), o.n_expert_used, normalize=True)

    def forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        ids, weights = self.choose(x, o)
        x = ops.reshape(x, o.n_embd, 1, x.dim(1))
        out = self.down(ops.glu(self.gate(x, ids), self.up(x, ids)), ids)
        return nn.sum_experts(out, weights)


def _as_meant(scope: nn.Scope) -> nn.Scope:
    """Exchange `up` and `down` where each has the other's shape: an old converter wrote them so."""
    up, down = (f"{scope.prefix}ffn_{name}_exps.weight" for name in ("up", "down"))
    if up not in scope.weights or down not in scope.weights:
        return scope
    shape = tuple(scope.size(dim) for dim in SparseMLP.up.dims)
    if scope.weights[up].shape == shape or scope.weights[down].shape != shape:
        return scope
    return replace(scope, weights={**scope.weights, up: scope.weights[down], down: scope.weights[up]})


class MixtralLayer(SparseLayer):
    mlp = nn.Part(SparseMLP)


def make_layer(scope: nn.Scope) -> PreNormLayer:
    """One block: dense, or with experts where the file has them."""
    return MixtralLayer(scope) if scope.options.n_expert else PreNormLayer(scope)


class Llama(Decoder):
    architecture = "llama"

    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_llama(metadata, n_vocab)
        return replace(
            o,
            windows=read_windows(metadata, o.n_layer, period=0),
            attention_scale=metadata.f32("attention.scale", 0.0) or o.attention_scale,  # 0 is written for "none"
        )
