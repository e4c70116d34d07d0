"""Kimi Linear: `general.architecture` = kimi-linear.

Three of four blocks have Kimi delta attention: a delta net in which each channel of a key decays by itself. The others
have latent attention without positions. All blocks but the first have experts.
Source: Kimi team 2025 (arXiv:2510.26692).
"""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.gating import SIGMOID
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, heads
from ollama_engine.models.decoder import PreNormLayer, SparseLayer
from ollama_engine.models.delta_net import L2_EPS
from ollama_engine.models.experts import CorrectedMLP
from ollama_engine.models.latent_attention import LatentAttention, LatentDecoder, LatentOptions, read_latent
from ollama_engine.models.options import read_sizes, read_taps


@dataclass(frozen=True, kw_only=True)
class KimiOptions(LatentOptions):
    """Options of Kimi Linear."""

    key_dim: int
    """Numbers of a head's key and value in delta attention."""
    n_taps: int

    @property
    def delta_size(self) -> int:
        """Numbers of all heads in delta attention."""
        return self.n_head * self.key_dim


class DeltaAttention(nn.Module):
    """A delta net whose keys decay channel by channel, with a gate of low rank."""

    q = nn.Linear("attn_q", "n_embd", "delta_size")
    k = nn.Linear("attn_k", "n_embd", "delta_size")
    v = nn.Linear("attn_v", "n_embd", "delta_size")
    q_conv = nn.CausalConv("ssm_conv1d_q", "n_taps", 1, "delta_size")
    k_conv = nn.CausalConv("ssm_conv1d_k", "n_taps", 1, "delta_size")
    v_conv = nn.CausalConv("ssm_conv1d_v", "n_taps", 1, "delta_size")
    decay_in = nn.Linear("ssm_f_a", "n_embd", "key_dim")
    decay_out = nn.Linear("ssm_f_b", "key_dim", "delta_size")
    dt = nn.Vector("ssm_dt.bias", "delta_size")
    a = nn.Vector("ssm_a", 1, "n_head")
    beta = nn.Linear("ssm_beta", "n_embd", "n_head")
    gate_in = nn.Linear("ssm_g_a", "n_embd", "key_dim")
    gate_out = nn.Linear("ssm_g_b", "key_dim", "delta_size")
    norm = nn.RMSNorm("ssm_norm", "key_dim")
    output = nn.Linear("attn_output", "delta_size", "n_embd")

    def forward(self, x: Tensor, step: LayerStep, o: KimiOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        *qkv, decay, beta, gate = nn.linears(x, self.q, self.k, self.v, self.decay_in, self.beta, self.gate_in)
        q, k, v = (
            heads(conv(rows, step.cache, part, silu=True), o.key_dim)
            for part, (rows, conv) in enumerate(zip(qkv, (self.q_conv, self.k_conv, self.v_conv), strict=True))
        )
        g = ops.unary(self.decay_out(decay) + self.dt.tensor, "softplus")
        g = heads(g, o.key_dim) * self.a.tensor
        y = nn.delta_net(q, k, v, g, ops.unary(beta, "sigmoid"), step.cache, part=3, eps=L2_EPS)
        y = ops.reshape(self.norm(y, o.norm_eps), o.delta_size, x.dim(1))
        return self.output(y * ops.unary(self.gate_out(gate), "sigmoid"))


class SparseAttentionLayer(SparseLayer):
    attention = nn.Part(LatentAttention)
    mlp = nn.Part(CorrectedMLP)


class SparseDeltaLayer(SparseAttentionLayer):
    attention = nn.Part(DeltaAttention)


class DenseAttentionLayer(PreNormLayer):
    attention = nn.Part(LatentAttention)


class DenseDeltaLayer(PreNormLayer):
    attention = nn.Part(DeltaAttention)


def make_layer(scope: nn.Scope) -> PreNormLayer:
    """One block."""
    attends, dense = scope.options.attends[scope.block], scope.block < scope.options.n_dense
    if dense:
        return (DenseAttentionLayer if attends else DenseDeltaLayer)(scope)
    return (SparseAttentionLayer if attends else SparseDeltaLayer)(scope)


class KimiLinear(LatentDecoder):
    options: KimiOptions
    architecture = "kimi-linear"

    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> KimiOptions:
        return _read(metadata, n_vocab)

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """Delta attention has a window for each of its convolutions, and a matrix for each head."""
        o = self.options
        window = (o.delta_size, o.n_taps - 1)
        return () if o.attends[layer] else (window, window, window, (o.key_dim, o.key_dim, o.n_head))


def _read(metadata: Metadata, n_vocab: int) -> KimiOptions:
    key_dim, gating = metadata.u32("kda.head_dim"), metadata.u32("expert_gating_func", SIGMOID)
    fields = read_latent(metadata, n_vocab, [key_dim])
    if gating != SIGMOID:
        raise ModelFormatError(f"expert_gating_func {gating} is {SIGMOID} (sigmoid)")
    return KimiOptions(
        **fields, rope=nn.Rope(n_dims=2), ropes=(None,) * fields["n_layer"],
        attends=tuple(n > 0 for n in read_sizes(metadata, "attention.head_count_kv")),
        normalize_experts=metadata.bool("expert_weights_norm", True), key_dim=key_dim,
        n_taps=read_taps(metadata, "ssm.conv_kernel"),
    )  # fmt: skip
