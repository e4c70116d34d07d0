"""Mixtures of experts that many models share, with llama.cpp's names and keys.

A model replaces how experts are chosen (`route`), and the expert that all tokens share (`shared`).
"""

from __future__ import annotations

from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.gating import GATINGS, SIGMOID
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.options import Options, read_experts


class SharedExpert(nn.GatedMLP):
    """The experts that all tokens share, as one."""

    gate = nn.Linear("ffn_gate_shexp", "n_embd", "n_ff_shexp")
    up = nn.Linear("ffn_up_shexp", "n_embd", "n_ff_shexp")
    down = nn.Linear("ffn_down_shexp", "n_ff_shexp", "n_embd")


def make_shared(scope: nn.Scope) -> SharedExpert | None:
    """The expert that all tokens share, in a model with one."""
    return SharedExpert(scope) if scope.options.n_ff_shexp else None


class SparseMLP(nn.Mixture):
    """The weighted sum of the chosen experts' SwiGLU, and what the shared expert adds."""

    router = nn.Linear("ffn_gate_inp", "n_embd", "n_expert")
    gate = nn.ExpertLinear("ffn_gate_exps", "n_embd", "n_ff_exp", "n_expert")
    up = nn.ExpertLinear("ffn_up_exps", "n_embd", "n_ff_exp", "n_expert")
    down = nn.ExpertLinear("ffn_down_exps", "n_ff_exp", "n_embd", "n_expert")
    shared: nn.Part[Any] = nn.Part(make_shared)

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        return nn.route(self.router(x), o.n_expert_used, normalize=o.normalize_experts)

    def forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        ids, weights = self.choose(x, o)
        rows = ops.reshape(x, o.n_embd, 1, x.dim(1))
        out = nn.sum_experts(self.down(ops.glu(self.gate(rows, ids), self.up(rows, ids)), ids), weights)
        return out if self.shared is None else out + self.shared.forward(x)


class CorrectedMLP(SparseMLP):
    """Experts that are chosen by sigmoids and a bias (DeepSeek-V3)."""

    correction = nn.Vector("exp_probs_b.bias", "n_expert")

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        return nn.route_corrected(
            self.router(x), self.correction.tensor, o.n_expert_used, normalize=o.normalize_experts, scale=o.expert_scale
        )


def read_mixture(
    metadata: Metadata, *, gating: int = SIGMOID, normalize: bool = True, shared: int = 0
) -> dict[str, Any]:
    """The fields of Options about a mixture, by llama.cpp's keys. Raises ModelFormatError for another `gating`.

    `normalize` and `shared`, the number of shared experts, count where the file does not say.
    """
    fields = read_experts(metadata)
    found = metadata.u32("expert_gating_func", gating) or gating  # 0 is written for "not said"
    if found != gating:
        raise ModelFormatError(f"expert_gating_func {found} is {gating} ({GATINGS[gating]}) in this architecture")
    n_ff_shexp = metadata.u32("expert_shared_count", shared) * fields["n_ff_exp"]
    return {
        **fields,
        "n_ff_shexp": metadata.u32("expert_shared_feed_forward_length", 0) or n_ff_shexp,
        "n_dense": metadata.u32("leading_dense_block_count", 0),
        "normalize_experts": metadata.bool("expert_weights_norm", normalize),
        "expert_scale": metadata.f32("expert_weights_scale", 0.0) or 1.0,  # 0 is written for "none"
    }
