"""Granite 4, hybrid: `general.architecture` = granitehybrid.

Most blocks have a Mamba-2 layer in place of attention, which has no positions; in larger models, experts stand beside a
feed-forward part that all tokens share. Embeddings, residuals, scores and logits are scaled. Source: IBM 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import extended, read_common, read_experts
from ollama_engine.models.qwen_moe import SparseMLP
from ollama_engine.models.state_space import StateSpace, StateSpaceOptions, read_state_space


@dataclass(frozen=True, kw_only=True)
class GraniteOptions(StateSpaceOptions):
    """Options of Granite 4."""

    embedding_scale: float
    residual_scale: float
    """Factor of what a part of a block adds."""


class DenseMLP(nn.GatedMLP):
    """The feed-forward part of a model without experts."""

    def forward(self, x: Tensor, o: GraniteOptions) -> Tensor:  # type: ignore[override]
        """x [n_embd, n] -> [n_embd, n]."""
        return super().forward(x)


class SharedGatedMLP(nn.GatedMLP):
    """The expert that all tokens share."""

    gate = nn.Linear("ffn_gate_shexp", "n_embd", "n_ff_shexp")
    up = nn.Linear("ffn_up_shexp", "n_embd", "n_ff_shexp")
    down = nn.Linear("ffn_down_shexp", "n_ff_shexp", "n_embd")


class SharedExperts(SparseMLP):
    """The chosen experts, and the one that all tokens share."""

    shared = nn.Part(SharedGatedMLP)

    def forward(self, x: Tensor, o: GraniteOptions) -> Tensor:  # type: ignore[override]
        """x [n_embd, n] -> [n_embd, n]."""
        return super().forward(x, o) + self.shared.forward(x)


def make_mixer(scope: nn.Scope) -> SelfAttention | StateSpace:
    """The part of a block that knows a token's past."""
    return (SelfAttention if scope.options.attends[scope.block] else StateSpace)(scope)


def make_mlp(scope: nn.Scope) -> DenseMLP | SparseMLP:
    """The feed-forward part of a block."""
    if not scope.options.n_expert:
        return DenseMLP(scope)
    return (SharedExperts if scope.options.n_ff_shexp else SparseMLP)(scope)


class ScaledLayer(nn.Module):
    attn_norm = nn.RMSNorm("attn_norm", "n_embd")
    mixer = nn.Part(make_mixer)
    ffn_norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp = nn.Part(make_mlp)

    def forward(self, x: Tensor, step: LayerStep, o: GraniteOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = step.output_rows(self.mixer.forward(self.attn_norm(x, o.norm_eps), step, o))
        x = ops.scale(a, o.residual_scale) + step.output_rows(x)
        return ops.scale(self.mlp.forward(self.ffn_norm(x, o.norm_eps), o), o.residual_scale) + x


class GraniteHybrid(Decoder):
    options: GraniteOptions
    architecture = "granitehybrid"

    layers = nn.Blocks(ScaledLayer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> GraniteOptions:
        o = read_common(metadata, n_vocab, rope_mode="norm")
        scale = metadata.f32("logit_scale", 1.0)
        if scale == 0:
            raise ModelFormatError("logit_scale, which logits are divided by, must not be 0")
        options = extended(
            o, GraniteOptions, **read_state_space(metadata), embedding_scale=metadata.f32("embedding_scale", 1.0),
            residual_scale=metadata.f32("residual_scale", 1.0),
        )  # fmt: skip
        # llama.cpp's switch for rotation in this architecture.
        rotates = metadata.bool("rope.scaling.finetuned", True)
        return replace(
            options, **(read_experts(metadata, o.n_ff) if metadata.u32("expert_count", 0) else {}),
            n_ff_shexp=metadata.u32("expert_shared_feed_forward_length", 0), logit_scale=1 / scale,
            attention_scale=metadata.f32("attention.scale", 0.0) or o.attention_scale,
            attends=o.attends or (True,) * o.n_layer, ropes=o.ropes if rotates else (None,) * o.n_layer,
        )  # fmt: skip

    def embed(self, tokens: Tensor) -> Tensor:
        return ops.scale(super().embed(tokens), self.options.embedding_scale)

    def logits(self, x: Tensor) -> Tensor:
        return ops.scale(super().logits(x), self.options.logit_scale)

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        return () if self.options.attends[layer] else self.options.state
