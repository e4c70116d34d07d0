"""Kimi Linear: `general.architecture` = kimi-linear.

Three of four blocks have Kimi delta attention: a delta net in which each channel of a key decays by itself. The others
have latent attention without positions (MLA, DeepSeek-V2): all heads share one key, whose largest part is their value,
and each head has its own map into and out of it. All blocks but the first have experts.
Source: Kimi team 2025 (arXiv:2510.26692).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.gguf.next_tokens import n_blocks
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, heads
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.delta_net import L2_EPS
from ollama_engine.models.lfm2 import SIGMOID, CorrectedMLP
from ollama_engine.models.options import MAX_LAYERS, RMS_EPS, Options, read_experts, read_sizes, read_taps

LATENT_EPS = 1e-6
"""Epsilon of the latent vector's norm in transformers, whatever rms_norm_eps is; llama.cpp has rms_norm_eps there."""


@dataclass(frozen=True, kw_only=True)
class KimiOptions(Options):
    """Options of Kimi Linear. `head_dim` is that of the heads' own keys and queries in latent attention."""

    n_latent: int
    """Numbers of a latent vector: the value that all heads share, and most of their key."""
    n_shared: int
    """Numbers of a key that are the same for all heads, beside that."""
    value_dim: int
    """Numbers that a head makes of the latent value."""
    key_dim: int
    """Numbers of a head's key and value in delta attention."""
    n_taps: int
    n_dense: int
    """Blocks without experts, which are the first ones."""

    @property
    def n_own(self) -> int:
        """Numbers of a head's own query."""
        return self.head_dim - self.n_shared

    @property
    def latent_key(self) -> int:
        """Numbers of the key that is stored for a token."""
        return self.n_latent + self.n_shared

    @property
    def values_size(self) -> int:
        """Numbers that all heads make of the latent value."""
        return self.n_head * self.value_dim

    @property
    def delta_size(self) -> int:
        """Numbers of all heads in delta attention."""
        return self.n_head * self.key_dim


class LatentAttention(nn.Module):
    """Queries are mapped to the latent keys, which are compared with all tokens'; no positions."""

    q = nn.Linear("attn_q", "n_embd", "q_size")
    kv = nn.Linear("attn_kv_a_mqa", "n_embd", "latent_key")
    norm = nn.RMSNorm("attn_kv_a_norm", "n_latent")
    to_latent = nn.HeadLinear("attn_k_b", "n_own", "n_latent", "n_head")
    of_latent = nn.HeadLinear("attn_v_b", "n_latent", "value_dim", "n_head")
    output = nn.Linear("attn_output", "values_size", "n_embd")

    def forward(self, x: Tensor, step: LayerStep, o: KimiOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        n = x.dim(1)
        kv = self.kv(x)
        latent = self.norm(ops.cont(ops.view(kv, (o.n_latent, n), (kv.stride(1),))), LATENT_EPS)
        shared = ops.cont(ops.view(kv, (o.n_shared, n), (kv.stride(1),), o.n_latent * kv.stride(0)))
        value = heads(latent, o.n_latent)
        step.cache.put(ops.concat(value, heads(shared, o.n_shared), 0), value)
        query = heads(self.q(x), o.head_dim)
        own, rest = (
            ops.cont(ops.view(query, (size, o.n_head, n), (query.stride(1), query.stride(2)), at * query.stride(0)))
            for size, at in ((o.n_own, 0), (o.n_shared, o.n_own))
        )
        y = nn.attention(ops.concat(self.to_latent(own), rest, 0), step.cache, o.attention_scale)
        return self.output(ops.reshape(self.of_latent(heads(y, o.n_latent)), o.values_size, n))


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
        q, k, v = (
            heads(conv(linear(x), step.cache, part, silu=True), o.key_dim)
            for part, (linear, conv) in enumerate(((self.q, self.q_conv), (self.k, self.k_conv), (self.v, self.v_conv)))
        )
        g = ops.unary(self.decay_out(self.decay_in(x)) + self.dt.tensor, "softplus")
        g = heads(g, o.key_dim) * self.a.tensor
        q, k = (ops.rms_norm(part, L2_EPS / o.key_dim) for part in (q, k))  # sqrt(key_dim) long
        y = nn.delta_net(
            ops.scale(q, 1 / o.key_dim), ops.scale(k, o.key_dim**-0.5), v, g, ops.unary(self.beta(x), "sigmoid"),
            step.cache, part=3,
        )  # fmt: skip
        y = ops.reshape(self.norm(y, o.norm_eps), o.delta_size, x.dim(1))
        return self.output(y * ops.unary(self.gate_out(self.gate_in(x)), "sigmoid"))


class SharedMLP(nn.GatedMLP):
    """The experts that all tokens share, as one."""

    gate = nn.Linear("ffn_gate_shexp", "n_embd", "n_ff_shexp")
    up = nn.Linear("ffn_up_shexp", "n_embd", "n_ff_shexp")
    down = nn.Linear("ffn_down_shexp", "n_ff_shexp", "n_embd")


class SparseAttentionLayer(SparseLayer):
    attention = nn.Part(LatentAttention)
    mlp = nn.Part(CorrectedMLP)
    shared = nn.Part(SharedMLP)

    def feed_forward(self, x: Tensor, o: Options) -> Tensor:
        return super().feed_forward(x, o) + self.shared.forward(x)


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


class KimiLinear(Decoder):
    options: KimiOptions
    architecture = "kimi-linear"

    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> KimiOptions:
        return _read(metadata, n_vocab)

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Latent attention stores one key for all heads, a part of which is the value."""
        o = self.options
        return tuple(
            replace(shape, key_dim=o.latent_key, value_dim=o.n_latent) if shape.attends else shape
            for shape in super().cache_layers
        )

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """Delta attention has a window for each of its convolutions, and a matrix for each head."""
        o = self.options
        window = (o.delta_size, o.n_taps - 1)
        return () if o.attends[layer] else (window, window, window, (o.key_dim, o.key_dim, o.n_head))


def _read(metadata: Metadata, n_vocab: int) -> KimiOptions:
    n_layer, _ = n_blocks(metadata)
    n_embd, n_head = metadata.u32("embedding_length"), metadata.u32("attention.head_count")
    n_latent, head_dim = metadata.u32("attention.kv_lora_rank"), metadata.u32("attention.key_length_mla")
    n_shared, value_dim = metadata.u32("rope.dimension_count"), metadata.u32("attention.value_length_mla")
    key_dim, n_ff = metadata.u32("kda.head_dim"), max(read_sizes(metadata, "feed_forward_length"))
    context_length, norm_eps = metadata.u32("context_length"), metadata.f32(RMS_EPS)
    sizes = (n_embd, n_head, n_latent, n_shared, value_dim, key_dim, n_ff, context_length)
    if not 1 <= n_layer <= MAX_LAYERS or min(sizes) < 1 or n_shared >= head_dim or norm_eps < 0:
        raise ModelFormatError(
            f"block_count {n_layer} is 1 to {MAX_LAYERS}, {RMS_EPS} {norm_eps} is 0 or more; rope.dimension_count "
            f"{n_shared} is less than attention.key_length_mla {head_dim}; no size is 0, got {sizes}"
        )
    experts = read_experts(metadata)
    shared = metadata.u32("expert_shared_count", 1) * experts["n_ff_exp"]
    gating = metadata.u32("expert_gating_func", SIGMOID)
    if shared < 1 or gating != SIGMOID:
        raise ModelFormatError(
            f"expert_shared_count {shared // experts['n_ff_exp']} is at least 1, expert_gating_func {gating} is "
            f"{SIGMOID} (sigmoid)"
        )
    return KimiOptions(
        n_layer=n_layer, n_embd=n_embd, n_ff=n_ff, n_head=n_head, n_head_kv=1, head_dim=head_dim, n_vocab=n_vocab,
        norm_eps=norm_eps, attention_scale=1 / math.sqrt(head_dim), context_length=context_length,
        rope=nn.Rope(n_dims=2), ropes=(None,) * n_layer, windows=(None,) * n_layer,
        attends=tuple(n > 0 for n in read_sizes(metadata, "attention.head_count_kv")), **experts, n_ff_shexp=shared,
        expert_scale=metadata.f32("expert_weights_scale", 1.0),
        normalize_experts=metadata.bool("expert_weights_norm", True), n_latent=n_latent, n_shared=n_shared,
        value_dim=value_dim, key_dim=key_dim, n_taps=read_taps(metadata, "ssm.conv_kernel"),
        n_dense=metadata.u32("leading_dense_block_count", 0),
    )  # fmt: skip
