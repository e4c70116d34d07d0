"""What decoders that are made of equal blocks share: reading options, the way from tokens to logits, moving keys.

A model's file says what its blocks are. Blocks get what changes from layer to layer as a `Step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models.base import ModelInputs

MAX_LAYERS = 4096
"""More in a file's metadata are nonsense, and lists of that length would be made before a tensor is found missing."""


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """Sizes and constants from the metadata, under GGUF's names shortened."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    norm_eps: float
    attention_scale: float
    context_length: int
    rope: nn.Rope
    ropes: tuple[nn.Rope | None, ...]
    """The rotation of each layer; None where a layer has no positions."""
    windows: tuple[int | None, ...]
    """How many tokens each layer sees; None sees all."""
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0
    """Hidden size of one expert."""
    n_ff_shexp: int = 0
    """Hidden size of the expert that all tokens share."""
    normalize_experts: bool = True
    """Whether the weights of the chosen experts are made to add up to 1."""

    @property
    def q_size(self) -> int:
        """Query values of one token; not n_embd where head_dim is explicit."""
        return self.n_head * self.head_dim

    @property
    def kv_size(self) -> int:
        """Key (or value) values of one token."""
        return self.n_head_kv * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Rows of a fused projection."""
        return self.q_size + 2 * self.kv_size

    @property
    def n_ff_twice(self) -> int:
        """Rows of a fused gate and up projection."""
        return 2 * self.n_ff

    @property
    def n_rope_factors(self) -> int:
        """Entries of a tensor that divides rotary angles."""
        return self.rope.n_dims // 2


RMS_EPS = "attention.layer_norm_rms_epsilon"
LAYER_EPS = "attention.layer_norm_epsilon"


def read_decoder(
    metadata: Metadata,
    n_vocab: int,
    *,
    rope_mode: str = "neox",
    eps: str = RMS_EPS,
    head_dim: int | None = None,
    longrope: bool = False,
) -> dict[str, Any]:
    """The fields of DecoderOptions that most models read alike; `n_vocab` counts the rows of the token embedding.

    `head_dim` is what counts where attention.key_length is absent, instead of n_embd / n_head. Every layer sees all
    and rotates alike; a model replaces `ropes` and `windows`. Raises ModelFormatError.
    """
    n_embd, n_head = metadata.u32("embedding_length"), metadata.u32("attention.head_count")
    head_dim = metadata.u32("attention.key_length", head_dim or n_embd // max(1, n_head))
    if min(n_embd, n_head, head_dim) < 1:
        raise ModelFormatError(
            f"embedding_length {n_embd}, attention.head_count {n_head} and the size of a head {head_dim} "
            "(attention.key_length, or the quotient of the two) must not be 0"
        )
    if metadata.u32("attention.value_length", head_dim) != head_dim:
        raise ModelFormatError("attention.key_length and attention.value_length differ; this model has one head size")
    n_rot = min(metadata.u32("rope.dimension_count", head_dim), head_dim)
    fields: dict[str, Any] = {
        "n_layer": metadata.u32("block_count"),
        "n_embd": n_embd,
        "n_ff": metadata.u32("feed_forward_length"),
        "n_head": n_head,
        "n_head_kv": metadata.u32("attention.head_count_kv", n_head),
        "head_dim": head_dim,
        "n_vocab": n_vocab,
        "norm_eps": metadata.f32(eps),
        "attention_scale": 1 / math.sqrt(head_dim),
        "context_length": metadata.u32("context_length"),
        "rope": nn.read_rope(metadata, n_rot, rope_mode, longrope=longrope),
    }
    _check(fields, eps)
    n_layer = fields["n_layer"]
    return {**fields, "ropes": (fields["rope"],) * n_layer, "windows": (None,) * n_layer}


def _check(f: Mapping[str, Any], eps: str) -> None:
    if not 1 <= f["n_layer"] <= MAX_LAYERS or min(f["n_ff"], f["n_head_kv"], f["context_length"]) < 1:
        raise ModelFormatError(
            f"block_count {f['n_layer']} is 1 to {MAX_LAYERS}; feed_forward_length {f['n_ff']}, "
            f"attention.head_count_kv {f['n_head_kv']} and context_length {f['context_length']} must not be 0"
        )
    if f["n_head"] % f["n_head_kv"]:
        raise ModelFormatError(f"head_count {f['n_head']} is no multiple of head_count_kv {f['n_head_kv']}")
    n_rot = f["rope"].n_dims
    if f["head_dim"] % 2 or n_rot % 2 or n_rot < 2:
        raise ModelFormatError(f"rotary heads have an even size, got {f['head_dim']} with {n_rot} rotated")
    if f["norm_eps"] < 0:
        raise ModelFormatError(f"{eps} is 0 or more, got {f['norm_eps']}")


def read_experts(metadata: Metadata, n_ff: int) -> dict[str, int]:
    """The fields of DecoderOptions about experts; those of a file that does not say have `n_ff` hidden values."""
    n_expert, used = metadata.u32("expert_count"), metadata.u32("expert_used_count")
    hidden = metadata.u32("expert_feed_forward_length", n_ff)
    if not 1 <= used <= n_expert or hidden < 1:
        raise ModelFormatError(
            f"expert_used_count {used} is 1 to expert_count {n_expert}, and expert_feed_forward_length {hidden} above 0"
        )
    return {"n_expert": n_expert, "n_expert_used": used, "n_ff_exp": hidden}


def read_windows(metadata: Metadata, n_layer: int, period: int, default: int = 0) -> tuple[int | None, ...]:
    """The window of each layer.

    `attention.sliding_window_pattern` tells the local layers by a list, or by a number: the last of so many layers
    sees all; with 0 all are local. `period` and the window `default` count where the file does not say.
    """
    window = min(metadata.u32("attention.sliding_window", default), 2**31 - 1)
    if not window:
        return (None,) * n_layer
    name = "attention.sliding_window_pattern"
    if isinstance(metadata.values.get(metadata.key(name)), (np.ndarray, list)):
        local = metadata.bools(name, n_layer)
    else:
        period = metadata.u32(name, period)
        local = [period == 0 or i % period < period - 1 for i in range(n_layer)]
    return tuple(window if is_local else None for is_local in local)


def read_local_ropes(
    metadata: Metadata, rope: nn.Rope, windows: tuple[int | None, ...], base: float
) -> tuple[nn.Rope, ...]:
    """`rope` for layers that see all; local ones have a base of their own, or `base`, and no scaling."""
    base = metadata.f32("rope.freq_base_swa", metadata.f32("rope.local.freq_base", base))
    local = nn.Rope(n_dims=rope.n_dims, mode=rope.mode, base=nn.check_base("rope.freq_base_swa", base))
    return tuple(local if window else rope for window in windows)


@dataclass(frozen=True, slots=True)
class Step:
    """What a block computes with besides its input: positions, rotation and cache of its layer."""

    positions: Tensor
    rope: nn.Rope | None
    factors: Tensor | None
    cache: LayerView
    outputs: Tensor | None
    """In the last layer, the rows that are wanted of it."""

    def rotate(self, heads: Tensor) -> Tensor:
        """Queries or keys [head_dim, heads, n] at the step's positions."""
        return heads if self.rope is None else self.rope(heads, self.positions, self.factors)

    def wanted(self, x: Tensor) -> Tensor:
        """The rows of x [m, n] that later blocks, or the caller, need."""
        return x if self.outputs is None else ops.get_rows(x, self.outputs)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions. A subclass says how queries, keys and values are made."""

    output = nn.Linear("attn_output", "q_size", "n_embd")

    sinks: Tensor | None = None

    def project(self, x: Tensor, o: DecoderOptions) -> tuple[Tensor, Tensor, Tensor]:
        """x [n_embd, n] -> queries [head_dim, n_head, n], keys and values [head_dim, n_head_kv, n]."""
        raise NotImplementedError

    def forward(self, x: Tensor, step: Step, o: DecoderOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        q, k, v = self.project(x, o)
        q, k = step.rotate(q), step.rotate(k)
        step.cache.put(k, v)
        return self.output(
            nn.attention(q, step.cache, o.attention_scale, softcap=o.attention_softcap, sinks=self.sinks)
        )


class SelfAttention(Attention):
    """Attention with three projections."""

    q = nn.Linear("attn_q", "n_embd", "q_size")
    k = nn.Linear("attn_k", "n_embd", "kv_size")
    v = nn.Linear("attn_v", "n_embd", "kv_size")

    def project(self, x: Tensor, o: DecoderOptions) -> tuple[Tensor, Tensor, Tensor]:
        """See Attention."""
        return heads(self.q(x), o.head_dim), heads(self.k(x), o.head_dim), heads(self.v(x), o.head_dim)


def heads(x: Tensor, head_dim: int) -> Tensor:
    """[head_dim * heads, n] -> [head_dim, heads, n]."""
    return ops.reshape(x, head_dim, x.dim(0) // head_dim, x.dim(1))


class PreNormLayer(nn.Module):
    """One block: attention, then feed-forward, each behind a norm and beside a residual."""

    attn_norm: nn.Norm = nn.RMSNorm("attn_norm", "n_embd")
    attention: nn.Part[Any] = nn.Part(SelfAttention)
    ffn_norm: nn.Norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp: nn.Part[Any] = nn.Part(nn.GatedMLP)

    def forward(self, x: Tensor, step: Step, o: DecoderOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = self.attention.forward(self.attn_norm(x, o.norm_eps), step, o)
        x = step.wanted(a) + step.wanted(x)
        return self.feed_forward(self.ffn_norm(x, o.norm_eps), o) + x

    def feed_forward(self, x: Tensor, o: DecoderOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], without norm and residual."""
        out: Tensor = self.mlp.forward(x)
        return out


class Decoder(nn.Module):
    """A whole model. A subclass names its architecture and blocks, and reads its options."""

    architecture: ClassVar[str]

    token_embd = nn.Embedding("token_embd", "n_embd", "n_vocab")
    layers: nn.Blocks[Any] = nn.Blocks(PreNormLayer, "n_layer")
    output_norm: nn.Norm = nn.RMSNorm("output_norm", "n_embd")
    output = nn.Linear("output", "n_embd", "n_vocab", alt="token_embd")

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        if "token_embd.weight" not in weights:
            raise ModelFormatError("the file has no tensor token_embd.weight; is it a vocabulary-only file?")
        self.options = self.read_options(metadata, weights["token_embd.weight"].dim(1))
        scope = nn.Scope(weights, self.options)
        super().__init__(scope)
        self.unused_weights = tuple(sorted(set(weights) - scope.used))

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> DecoderOptions:
        """Options of a file; `n_vocab` counts the rows of its token embedding. Raises ModelFormatError."""
        return DecoderOptions(**read_decoder(metadata, n_vocab))

    @property
    def n_vocab(self) -> int:
        """Length of a row of logits."""
        return self.options.n_vocab

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for."""
        return self.options.context_length

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """One head size for keys and values, each layer with its window."""
        o = self.options
        return tuple(
            LayerShape(kv_heads=o.n_head_kv, key_dim=o.head_dim, value_dim=o.head_dim, window=window)
            for window in o.windows
        )

    def rope_factors(self, like: Tensor) -> Tensor | None:
        """What divides rotary angles, if the model has such; `like` is of the graph that they are for."""
        return None

    def embed(self, tokens: Tensor) -> Tensor:
        """i32 [n] -> f32 [n_embd, n]."""
        return self.token_embd(tokens)

    def logits(self, x: Tensor) -> Tensor:
        """The last block's output [n_embd, n] -> f32 [n_vocab, n]."""
        return self.output(self.output_norm(x, self.options.norm_eps))

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: logits f32 [n_vocab, n_outputs]."""
        o = self.options
        x, factors = self.embed(inputs.tokens), self.rope_factors(inputs.tokens)
        for i, layer in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            x = layer.forward(x, Step(inputs.positions, o.ropes[i], factors, cache, outputs), o)
        return self.logits(x)

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        """Keys f32 [head_dim, n_head_kv, n] of a layer at positions changed by deltas i32 [n]."""
        rope = self.options.ropes[layer]
        return keys if rope is None else rope.shifted(keys, deltas, self.rope_factors(keys))
