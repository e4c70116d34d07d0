"""Qwen3.5 and Qwen3-Next: `general.architecture` = qwen35, qwen35moe or qwen3next.

Three of four blocks have a gated delta net in place of attention; attention has a gate and rotates a part of each head.
Source: Qwen team 2025 and 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, heads
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.delta_net import DeltaNet, DeltaNetOptions, Projections, read_delta_net, read_linear_layers
from ollama_engine.models.options import Options, extended, read_common, read_experts
from ollama_engine.models.qwen3 import NormedAttention
from ollama_engine.models.qwen3vl.multimodal import VISION_TENSOR, Qwen3VLMultimodal
from ollama_engine.models.qwen3vl.text import with_axes
from ollama_engine.models.qwen25vl.images import QwenImageReader
from ollama_engine.models.qwen_moe import GatedSharedMLP


class GatedAttention(NormedAttention):
    """The result of each head is multiplied by a sigmoid, whose argument lies behind the head's query."""

    q = nn.Linear("attn_q", "n_embd", "q_size_twice")

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        both, key, value = nn.linears(x, self.q, self.k, self.v)
        both = heads(both, 2 * o.head_dim)
        query, gate = (
            ops.cont(ops.view(both, (o.head_dim, o.n_head, x.dim(1)), (both.stride(1), both.stride(2)), at))
            for at in (0, o.head_dim * both.stride(0))
        )
        key = self.k_norm(heads(key, o.head_dim), o.norm_eps)
        step.cache.put(step.rotate(key), heads(value, o.head_dim))
        y = nn.attention(step.rotate(self.q_norm(query, o.norm_eps)), step.cache, o.attention_scale)
        return self.output(y * ops.unary(ops.reshape(gate, o.q_size, x.dim(1)), "sigmoid"))


class Qwen35DeltaNet(DeltaNet):
    beta = nn.Linear("ssm_beta", "n_embd", "n_value_heads")
    alpha = nn.Linear("ssm_alpha", "n_embd", "n_value_heads")

    @property
    def strength_maps(self) -> tuple[nn.Linear, ...]:
        return self.beta, self.alpha

    def strengths(self, results: Sequence[Tensor], o: DeltaNetOptions) -> tuple[Tensor, Tensor]:
        beta, alpha = results
        return beta, alpha


class GroupedProjections(nn.Module):
    """The query, the key, the values and the gates of each head of keys in turn, as Qwen3-Next is published.

    So in files of llama.cpp's first converter.
    """

    into = nn.Linear("ssm_in", "n_embd", "into_size")

    @property
    def maps(self) -> tuple[nn.Linear, ...]:
        return (self.into,)

    def split(self, results: Sequence[Tensor], o: DeltaNetOptions) -> tuple[Tensor, Tensor]:
        """The result of `maps` -> [conv_size, n], [value_size, n]."""
        share, n = o.value_size // o.n_key_heads, results[0].dim(1)
        rows = heads(results[0], 2 * (o.key_dim + share))
        parts, begin = [], 0
        for size in (o.key_dim, o.key_dim, share, share):
            group = ops.view(rows, (size, o.n_key_heads, n), (rows.stride(1), rows.stride(2)), begin * rows.stride(0))
            parts.append(ops.reshape(ops.cont(group), size * o.n_key_heads, n))
            begin += size
        query, key, value, gate = parts
        return ops.concat(ops.concat(query, key, 0), value, 0), gate


class Qwen3NextDeltaNet(DeltaNet):
    projections = nn.Part(
        lambda scope: (GroupedProjections if f"{scope.prefix}ssm_in.weight" in scope.weights else Projections)(scope)
    )
    both = nn.Linear("ssm_ba", "n_embd", "n_value_heads_twice")

    @property
    def strength_maps(self) -> tuple[nn.Linear, ...]:
        return (self.both,)

    def strengths(self, results: Sequence[Tensor], o: DeltaNetOptions) -> tuple[Tensor, Tensor]:
        """The projection has both numbers of all heads that share a head of keys, one after the other."""
        share, n = o.n_value_heads // o.n_key_heads, results[0].dim(1)
        rows = heads(results[0], 2 * share)
        beta, alpha = (
            ops.cont(ops.view(rows, (share, o.n_key_heads, n), (rows.stride(1), rows.stride(2)), at * rows.stride(0)))
            for at in (0, share)
        )
        return ops.reshape(beta, o.n_value_heads, n), ops.reshape(alpha, o.n_value_heads, n)


class AttentionLayer(PreNormLayer):
    attention = nn.Part(GatedAttention)
    ffn_norm = nn.RMSNorm("post_attention_norm", "n_embd")


class LinearLayer(AttentionLayer):
    attention = nn.Part(Qwen35DeltaNet)


class SparseAttentionLayer(AttentionLayer):
    mlp = nn.Part(GatedSharedMLP)

    def feed_forward(self, x: Tensor, o: Options) -> Tensor:
        out: Tensor = self.mlp.forward(x, o)
        return out


class SparseLinearLayer(SparseAttentionLayer):
    attention = nn.Part(Qwen35DeltaNet)


class Qwen3NextLinearLayer(SparseAttentionLayer):
    attention = nn.Part(Qwen3NextDeltaNet)


def _layers(attention: type[AttentionLayer], linear: type[AttentionLayer]) -> nn.Blocks[AttentionLayer]:
    """All blocks: those with attention are of one class, the others of another."""
    return nn.Blocks(lambda scope: (attention if scope.options.attends[scope.block] else linear)(scope), "n_layer")


class Qwen35Text(Decoder):
    options: DeltaNetOptions

    layers = _layers(AttentionLayer, LinearLayer)
    next_block = AttentionLayer

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> DeltaNetOptions:
        return _read(metadata, n_vocab, grouped=False)

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        return () if self.options.attends[layer] else self.options.state


class Qwen35MoeText(Qwen35Text):
    layers = _layers(SparseAttentionLayer, SparseLinearLayer)
    next_block = SparseAttentionLayer

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> DeltaNetOptions:
        return _read_sparse(metadata, n_vocab, grouped=False)


class Qwen35(QwenImageReader, Qwen35Text):
    architecture = "qwen35"

    vision_tensor = VISION_TENSOR
    vision_part = Qwen3VLMultimodal


class Qwen35Moe(QwenImageReader, Qwen35MoeText):
    architecture = "qwen35moe"

    vision_tensor = VISION_TENSOR
    vision_part = Qwen3VLMultimodal


class Qwen3Next(Qwen35Text):
    architecture = "qwen3next"

    layers = _layers(SparseAttentionLayer, Qwen3NextLinearLayer)
    next_block = SparseAttentionLayer

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> DeltaNetOptions:
        return _read_sparse(metadata, n_vocab, grouped=True)


def _read(metadata: Metadata, n_vocab: int, *, grouped: bool) -> DeltaNetOptions:
    o = extended(read_common(metadata, n_vocab), DeltaNetOptions, **read_delta_net(metadata, grouped=grouped))
    return with_axes(replace(o, attends=read_linear_layers(metadata, o)), metadata)


def _read_sparse(metadata: Metadata, n_vocab: int, *, grouped: bool) -> DeltaNetOptions:
    o = replace(_read(metadata, n_vocab, grouped=grouped), **read_experts(metadata))
    shared = metadata.u32("expert_shared_feed_forward_length", o.n_ff_exp)
    return replace(o, n_ff_shexp=shared, normalize_experts=metadata.bool("norm_top_k_prob", True))
