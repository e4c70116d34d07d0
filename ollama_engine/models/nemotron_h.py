"""Nemotron-H and Nemotron 3: `general.architecture` = nemotron_h or nemotron_h_moe.

A block is one thing: a Mamba-2 layer, attention without positions, or a feed-forward layer whose activation is relu^2.
Feed-forward layers of nemotron_h_moe are mixtures of experts, which may read and write a smaller, latent vector.
Sources: NVIDIA 2025 (arXiv:2504.03624, arXiv:2512.20848).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import LAYER_EPS, RMS_EPS, extended, read_common, read_experts, read_sizes
from ollama_engine.models.state_space import StateSpace, StateSpaceOptions, read_state_space


@dataclass(frozen=True, kw_only=True)
class NemotronOptions(StateSpaceOptions):
    """Options of Nemotron-H."""

    has_mlp: tuple[bool, ...]
    """Whether each layer is a feed-forward layer."""
    n_latent: int = 0
    """Numbers that experts read and write, where those are not the hidden values."""

    @property
    def n_expert_in(self) -> int:
        """Numbers that an expert reads and writes."""
        return self.n_latent or self.n_embd


class SquaredMLP(nn.Module):
    """down(relu(up x)^2)."""

    up = nn.Linear("ffn_up", "n_embd", "n_ff")
    down = nn.Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor, o: NemotronOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(nn.relu_squared(self.up(x)))


class SharedSquaredMLP(SquaredMLP):
    """The expert that all tokens share."""

    up = nn.Linear("ffn_up_shexp", "n_embd", "n_ff_shexp")
    down = nn.Linear("ffn_down_shexp", "n_ff_shexp", "n_embd")


class Experts(nn.Mixture):
    """Experts without gates: the weighted sum of the chosen ones, and the one that all tokens share."""

    router = nn.Linear("ffn_gate_inp", "n_embd", "n_expert")
    correction = nn.Vector("exp_probs_b.bias", "n_expert")
    up = nn.ExpertLinear("ffn_up_exps", "n_expert_in", "n_ff_exp", "n_expert")
    down = nn.ExpertLinear("ffn_down_exps", "n_ff_exp", "n_expert_in", "n_expert")
    shared = nn.Part(SharedSquaredMLP)

    def route(self, x: Tensor, o: NemotronOptions) -> tuple[Tensor, Tensor]:
        return nn.route_corrected(
            self.router(x), self.correction.tensor, o.n_expert_used, normalize=o.normalize_experts, scale=o.expert_scale
        )

    def forward(self, x: Tensor, o: NemotronOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        ids, weights = self.choose(x, o)
        return self.mixture(x, ids, weights) + self.shared.forward(x, o)

    def mixture(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum over the experts `ids` of x [n_expert_in, n] -> [n_expert_in, n]."""
        y = self.up(ops.reshape(x, x.dim(0), 1, x.dim(1)), ids)
        return nn.sum_experts(self.down(nn.relu_squared(y), ids), weights)


class LatentExperts(Experts):
    """Experts that read and write a smaller vector."""

    into = nn.Linear("ffn_latent_down", "n_embd", "n_latent", alt="ffn_latent_in")
    out = nn.Linear("ffn_latent_up", "n_latent", "n_embd", alt="ffn_latent_out")

    def mixture(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return self.out(super().mixture(self.into(x), ids, weights))


class MixerLayer(nn.Module):
    """A block that knows a token's past."""

    norm = nn.RMSNorm("attn_norm", "n_embd")
    mixer: nn.Part[Any] = nn.Part(SelfAttention)

    def forward(self, x: Tensor, step: LayerStep, o: NemotronOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        y = self.mixer.forward(self.norm(x, o.norm_eps), step, o)
        return step.output_rows(y) + step.output_rows(x)


class StateSpaceLayer(MixerLayer):
    mixer = nn.Part(StateSpace)


class FeedForwardLayer(nn.Module):
    """A block that knows one token."""

    norm = nn.RMSNorm("attn_norm", "n_embd")
    mlp: nn.Part[Any] = nn.Part(SquaredMLP)

    def forward(self, x: Tensor, step: LayerStep, o: NemotronOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        x = step.output_rows(x)
        out: Tensor = self.mlp.forward(self.norm(x, o.norm_eps), o)
        return out + x


class ExpertsLayer(FeedForwardLayer):
    mlp = nn.Part(lambda scope: (LatentExperts if scope.options.n_latent else Experts)(scope))


def make_layer(scope: nn.Scope) -> nn.Module:
    """One block."""
    o: NemotronOptions = scope.options
    if o.has_mlp[scope.block]:
        return ExpertsLayer(scope) if o.n_expert else FeedForwardLayer(scope)
    return MixerLayer(scope) if o.attends[scope.block] else StateSpaceLayer(scope)


class NemotronH(Decoder):
    options: NemotronOptions
    architecture = "nemotron_h"

    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> NemotronOptions:
        return read(metadata, n_vocab)

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        o = self.options
        return () if o.attends[layer] or o.has_mlp[layer] else o.state


class NemotronHMoe(NemotronH):
    architecture = "nemotron_h_moe"

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> NemotronOptions:
        o = replace(read(metadata, n_vocab), **read_experts(metadata))
        shared = metadata.u32("expert_shared_feed_forward_length")
        if shared < 1:
            raise ModelFormatError("expert_shared_feed_forward_length must not be 0")
        return replace(
            o, n_ff_shexp=shared, normalize_experts=metadata.bool("expert_weights_norm", True),
            expert_scale=metadata.f32("expert_weights_scale", 1.0),
        )  # fmt: skip


def read(metadata: Metadata, n_vocab: int) -> NemotronOptions:
    """The options of both."""
    # llama.cpp reads either key, and its converter writes the second.
    o = read_common(metadata, n_vocab, eps=RMS_EPS if RMS_EPS in metadata else LAYER_EPS)
    has_mlp = tuple(n > 0 for n in read_sizes(metadata, "feed_forward_length"))
    o = extended(
        o, NemotronOptions, **read_state_space(metadata), has_mlp=has_mlp,
        n_latent=metadata.u32("moe_latent_size", 0),
    )  # fmt: skip
    attends = tuple(a and not mlp for a, mlp in zip(o.attends or (True,) * o.n_layer, has_mlp, strict=True))
    return replace(o, attends=attends, ropes=(None,) * o.n_layer)
