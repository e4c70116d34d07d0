"""Latent attention (MLA): all heads share one key for each token, the largest part of which is their value.

Each head has its own map into the space of the latent vectors, for queries, and out of it, for values. They stand for
the maps that would make keys and values of its own for every token (weight absorption): `attn_k_b` and `attn_v_b`. The
cache stores the shared key alone. Source: DeepSeek-V2 (Liu et al. 2024, arXiv:2405.04434).

Prompts are computed in this form, too. Making each head's keys and values anew would take a third of the operations for
a long prompt, and other bits than those of the tokens that are decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.gguf.next_tokens import n_blocks
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, heads
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import MAX_LAYERS, RMS_EPS, Options, read_experts, read_sizes

LATENT_EPS = 1e-6
"""Epsilon of the latent vectors' norms in transformers, whatever rms_norm_eps is; llama.cpp has rms_norm_eps there."""


@dataclass(frozen=True, kw_only=True)
class LatentOptions(Options):
    """Options of models with latent attention. `head_dim` is that of the heads' own keys and queries."""

    n_latent: int
    """Numbers of a latent vector: the value that all heads share, and most of their key."""
    n_shared: int
    """Numbers of a key that are the same for all heads, beside that; rotated where tokens have positions."""
    value_dim: int
    """Numbers that a head makes of the latent value."""
    n_narrow: int = 0
    """Numbers of the vector that queries are made of; 0 where they are made of the hidden state."""

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


class LatentAttention(nn.Module):
    """Queries are mapped to the latent keys, which are compared with all tokens'."""

    q = nn.Linear("attn_q", "n_embd", "q_size")
    kv = nn.Linear("attn_kv_a_mqa", "n_embd", "latent_key")
    norm = nn.RMSNorm("attn_kv_a_norm", "n_latent")
    to_latent = nn.HeadLinear("attn_k_b", "n_own", "n_latent", "n_head")
    of_latent = nn.HeadLinear("attn_v_b", "n_latent", "value_dim", "n_head")
    output = nn.Linear("attn_output", "values_size", "n_embd")

    def queries(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [q_size, n]."""
        return self.q(x)

    def forward(self, x: Tensor, step: LayerStep, o: LatentOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        n = x.dim(1)
        kv = self.kv(x)
        latent = self.norm(ops.cont(ops.view(kv, (o.n_latent, n), (kv.stride(1),))), LATENT_EPS)
        shared = ops.cont(ops.view(kv, (o.n_shared, n), (kv.stride(1),), o.n_latent * kv.stride(0)))
        value = heads(latent, o.n_latent)
        step.cache.put(ops.concat(value, step.rotate(heads(shared, o.n_shared)), 0), value)
        query = step.sharpened(heads(self.queries(x), o.head_dim))
        own, rest = parts(query, o.n_own, o.n_shared)
        y = nn.attention(ops.concat(self.to_latent(own), step.rotate(rest), 0), step.cache, o.attention_scale)
        return self.output(ops.reshape(self.of_latent(heads(y, o.n_latent)), o.values_size, n))


class NarrowLatentAttention(LatentAttention):
    """The same with queries that are made of a shorter vector."""

    q = None  # type: ignore[assignment]
    q_into = nn.Linear("attn_q_a", "n_embd", "n_narrow")
    q_norm = nn.RMSNorm("attn_q_a_norm", "n_narrow")
    q_out = nn.Linear("attn_q_b", "n_narrow", "q_size")

    def queries(self, x: Tensor) -> Tensor:
        return self.q_out(self.q_norm(self.q_into(x), LATENT_EPS))


def make_attention(scope: nn.Scope) -> LatentAttention:
    """Attention of one block."""
    return (NarrowLatentAttention if scope.options.n_narrow else LatentAttention)(scope)


class LatentDecoder(Decoder):
    """A decoder whose blocks with attention have latent attention."""

    options: LatentOptions

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Latent attention stores one key for all heads, a part of which is the value."""
        o = self.options
        return tuple(
            replace(shape, key_dim=o.latent_key, value_dim=o.n_latent, latent=True) if shape.attends else shape
            for shape in super().cache_layers
        )

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        """Keys f32 [latent_key, 1, n] of a layer, moved to their positions plus `deltas` i32 [n]."""
        o = self.options
        if o.ropes[layer] is None:
            return keys
        latent, shared = parts(keys, o.n_latent, o.n_shared)
        return ops.concat(latent, super().shift_keys(layer, shared, deltas), 0)


def read_latent(metadata: Metadata, n_vocab: int, more: Iterable[int] = ()) -> dict[str, Any]:
    """Fields of LatentOptions, without those of rotation and routing; `more` are other sizes, none of which may be 0.

    Files from before latent attention was computed as such have the heads' own sizes in keys without `_mla`. Raises
    ModelFormatError.
    """
    n_layer, _ = n_blocks(metadata)
    n_embd, n_head = metadata.u32("embedding_length"), metadata.u32("attention.head_count")
    n_latent, n_shared = metadata.u32("attention.kv_lora_rank"), metadata.u32("rope.dimension_count")
    head_dim, value_dim = (
        metadata.u32(f"{key}_mla") if f"{key}_mla" in metadata else metadata.u32(key)
        for key in ("attention.key_length", "attention.value_length")
    )
    n_ff, context_length = max(read_sizes(metadata, "feed_forward_length")), metadata.u32("context_length")
    norm_eps = metadata.f32(RMS_EPS)
    sizes = (n_embd, n_head, n_latent, n_shared, value_dim, n_ff, context_length, *more)
    if not 1 <= n_layer <= MAX_LAYERS or min(sizes) < 1 or n_shared >= head_dim or norm_eps < 0:
        raise ModelFormatError(
            f"block_count {n_layer} is 1 to {MAX_LAYERS}, {RMS_EPS} {norm_eps} is 0 or more; rope.dimension_count "
            f"{n_shared} is less than attention.key_length_mla {head_dim}; no size is 0, got {sizes}"
        )
    experts = read_experts(metadata)
    shared = metadata.u32("expert_shared_count", 1) * experts["n_ff_exp"]
    if shared < 1:
        raise ModelFormatError(f"expert_shared_count {shared // experts['n_ff_exp']} is at least 1")
    return {
        "n_layer": n_layer, "n_embd": n_embd, "n_ff": n_ff, "n_head": n_head, "n_head_kv": 1, "head_dim": head_dim,
        "n_vocab": n_vocab, "norm_eps": norm_eps, "attention_scale": 1 / math.sqrt(head_dim),
        "context_length": context_length, "windows": (None,) * n_layer, "n_latent": n_latent, "n_shared": n_shared,
        "value_dim": value_dim, **experts, "n_ff_shexp": shared,
        "expert_scale": metadata.f32("expert_weights_scale", 1.0),
        "n_dense": metadata.u32("leading_dense_block_count", 0),
    }  # fmt: skip


def parts(x: Tensor, first: int, second: int) -> tuple[Tensor, Tensor]:
    """x [first + second, heads, n] -> [first, heads, n] and [second, heads, n]."""

    def part(size: int, at: int) -> Tensor:
        return ops.cont(ops.view(x, (size, x.dim(1), x.dim(2)), (x.stride(1), x.stride(2)), at * x.stride(0)))

    return part(first, 0), part(second, first)
