"""Command with experts (North): `general.architecture` = cohere2moe.

Command R7B, whose blocks behind the first few have experts: sigmoids or a softmax of the chosen logits are their
weights, and the mean with what the shared experts add counts. Norms subtract the mean or not. The first blocks rotate
even where they are global. Source: Cohere 2026, and the reference implementation in transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.gating import CHOSEN, SIGMOID, SOFTMAX
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.command_r import CommandR
from ollama_engine.models.experts import SparseMLP, read_mixture
from ollama_engine.models.options import LAYER_EPS, RMS_EPS, Options, extended, read_common, read_windows


@dataclass(frozen=True, kw_only=True)
class CohereMoeOptions(Options):
    """Options of Command with experts."""

    centered: bool
    """Whether norms subtract the mean."""
    sigmoid: bool
    """Whether weights of experts are sigmoids."""


class EitherNorm(nn.LayerNorm):
    """A norm that subtracts the mean, or not, as the file says."""

    centered: bool

    def bind(self, scope: nn.Scope) -> Any:
        """A bound copy; see Weight.bind."""
        bound = super().bind(scope)
        bound.centered = scope.options.centered
        return bound

    def __call__(self, x: Tensor, eps: float) -> Tensor:
        return super().__call__(x, eps) if self.centered else ops.rms_norm(x, eps) * self.tensor


class MeanMLP(SparseMLP):
    """The mean of what the chosen experts and the shared ones give."""

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        assert isinstance(o, CohereMoeOptions)
        logits = self.router(x)
        if o.sigmoid:
            return nn.route_sigmoid(logits, o.n_expert_used, normalize=o.normalize_experts)
        return nn.route_chosen(logits, o.n_expert_used)

    def forward(self, x: Tensor, o: Options) -> Tensor:
        y = super().forward(x, o)
        return y if self.shared is None else ops.scale(y, 0.5)


class DenseMLP(nn.GatedMLP):
    """The feed-forward part of the first blocks."""

    def forward(self, x: Tensor, o: Options) -> Tensor:  # type: ignore[override]
        """x [n_embd, n] -> [n_embd, n]."""
        return super().forward(x)


def make_mlp(scope: nn.Scope) -> DenseMLP | MeanMLP:
    """The feed-forward part of a block."""
    return (DenseMLP if scope.block < scope.options.n_dense else MeanMLP)(scope)


class Layer(nn.Module):
    attn_norm = EitherNorm("attn_norm", "n_embd")
    attention = nn.Part(SelfAttention)
    mlp = nn.Part(make_mlp)

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        h = self.attn_norm(x, o.norm_eps)
        a = self.attention.forward(h, step, o)
        return step.output_rows(x) + step.output_rows(a) + self.mlp.forward(step.output_rows(h), o)


class Cohere2Moe(CommandR):
    options: CohereMoeOptions
    architecture = "cohere2moe"

    layers: nn.Blocks[Any] = nn.Blocks(Layer, "n_layer")
    output_norm = EitherNorm("output_norm", "n_embd")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> CohereMoeOptions:
        gating = metadata.u32("expert_gating_func", SIGMOID) or SIGMOID
        # llama.cpp's converter writes SOFTMAX for the softmax of config.json, which is one over the chosen logits.
        if gating not in (SIGMOID, SOFTMAX, CHOSEN):
            raise ModelFormatError(f"expert_gating_func is {SIGMOID} or {CHOSEN} for cohere2moe, got {gating}")
        centered = RMS_EPS not in metadata
        o = read_common(metadata, n_vocab, rope_mode="norm", eps=LAYER_EPS if centered else RMS_EPS)
        mixture = read_mixture(metadata, gating=gating, normalize=False)
        windows = read_windows(metadata, o.n_layer, period=4)
        o = replace(
            o, **mixture, logit_scale=metadata.f32("logit_scale", 1.0), windows=windows,
            ropes=tuple(o.rope if window or i < mixture["n_dense"] else None for i, window in enumerate(windows)),
        )  # fmt: skip
        return extended(o, CohereMoeOptions, centered=centered, sigmoid=gating == SIGMOID)
