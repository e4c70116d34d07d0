"""Llama 1 to 3.x, Mistral and Mixtral: `general.architecture` = llama.

Pre-norm transformer with rotary positions (adjacent pairs), grouped-query attention and a SwiGLU feed-forward block,
or a mixture of such blocks. Sources: Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral) and 2024 (Mixtral).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models.base import ModelInputs


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sizes and constants from the metadata, under GGUF's names shortened."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_expert: int
    n_expert_used: int
    norm_eps: float
    attention_scale: float
    context_length: int
    window: int | None
    rope: nn.Rope

    @property
    def q_size(self) -> int:
        """Query values of one token; not n_embd where head_dim is explicit (Mistral Nemo)."""
        return self.n_head * self.head_dim

    @property
    def kv_size(self) -> int:
        """Key (or value) values of one token."""
        return self.n_head_kv * self.head_dim

    @property
    def n_rope_factors(self) -> int:
        """Entries of rope_freqs."""
        return self.rope.n_dims // 2


def read_options(metadata: Metadata, n_vocab: int) -> Options:
    """Options of a file; `n_vocab` counts the rows of its token embedding."""
    n_embd, n_head = metadata.u32("embedding_length"), metadata.u32("attention.head_count")
    head_dim = metadata.u32("attention.key_length", n_embd // max(1, n_head))
    if min(n_embd, n_head, head_dim) < 1:
        raise ModelFormatError(
            f"embedding_length {n_embd}, attention.head_count {n_head} and the size of a head {head_dim} "
            "(attention.key_length, or the quotient of the two) must not be 0"
        )
    if metadata.u32("attention.value_length", head_dim) != head_dim:
        raise ModelFormatError("attention.key_length and attention.value_length differ; llama has one head size")
    # Some converters write hidden size / heads here although the heads are smaller.
    n_rot = min(metadata.u32("rope.dimension_count", head_dim), head_dim)
    options = Options(
        n_layer=metadata.u32("block_count"),
        n_embd=n_embd,
        n_ff=metadata.u32("feed_forward_length"),
        n_head=n_head,
        n_head_kv=metadata.u32("attention.head_count_kv", n_head),
        head_dim=head_dim,
        n_vocab=n_vocab,
        n_expert=metadata.u32("expert_count", 0),
        n_expert_used=metadata.u32("expert_used_count", 0),
        norm_eps=metadata.f32("attention.layer_norm_rms_epsilon"),
        attention_scale=metadata.f32("attention.scale", 0.0) or 1 / math.sqrt(head_dim),  # 0 is written for "none"
        context_length=metadata.u32("context_length"),
        window=min(metadata.u32("attention.sliding_window", 0), 2**31 - 1) or None,
        rope=nn.read_rope(metadata, n_rot),
    )
    _check(options)
    return options


def _check(o: Options) -> None:
    if min(o.n_layer, o.n_ff, o.n_head_kv, o.context_length) < 1:
        raise ModelFormatError(
            f"block_count {o.n_layer}, feed_forward_length {o.n_ff}, attention.head_count_kv {o.n_head_kv} and "
            f"context_length {o.context_length} must not be 0"
        )
    if o.n_head % o.n_head_kv:
        raise ModelFormatError(f"head_count {o.n_head} is no multiple of head_count_kv {o.n_head_kv}")
    if o.head_dim % 2 or o.rope.n_dims % 2 or o.rope.n_dims < 2:
        raise ModelFormatError(f"rotary heads have an even size, got {o.head_dim} with {o.rope.n_dims} rotated")
    if o.n_expert and not 1 <= o.n_expert_used <= o.n_expert:
        raise ModelFormatError(f"expert_used_count is 1 to expert_count {o.n_expert}, got {o.n_expert_used}")
    if o.norm_eps < 0:
        raise ModelFormatError(f"attention.layer_norm_rms_epsilon is 0 or more, got {o.norm_eps}")


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions."""

    q = nn.Linear("attn_q", "n_embd", "q_size")
    k = nn.Linear("attn_k", "n_embd", "kv_size")
    v = nn.Linear("attn_v", "n_embd", "kv_size")
    output = nn.Linear("attn_output", "q_size", "n_embd")

    def forward(self, x: Tensor, positions: Tensor, factors: Tensor | None, cache: LayerView, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        n = x.dim(1)
        q = ops.reshape(self.q(x), o.head_dim, o.n_head, n)
        k = ops.reshape(self.k(x), o.head_dim, o.n_head_kv, n)
        v = ops.reshape(self.v(x), o.head_dim, o.n_head_kv, n)
        q = o.rope(q, positions, factors)
        k = o.rope(k, positions, factors)
        cache.put(k, v)
        return self.output(nn.attention(q, cache, o.attention_scale))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    gate = nn.Linear("ffn_gate", "n_embd", "n_ff")
    up = nn.Linear("ffn_up", "n_embd", "n_ff")
    down = nn.Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(ops.glu(self.gate(x), self.up(x)))


class SparseMLP(nn.Module):
    """Mixtral's mixture: the weighted sum of the chosen experts' SwiGLU."""

    router = nn.Linear("ffn_gate_inp", "n_embd", "n_expert")
    gate = nn.ExpertLinear("ffn_gate_exps", "n_embd", "n_ff", "n_expert")
    up = nn.ExpertLinear("ffn_up_exps", "n_embd", "n_ff", "n_expert")
    down = nn.ExpertLinear("ffn_down_exps", "n_ff", "n_embd", "n_expert")

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(_as_meant(scope))

    def forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        ids, weights = nn.route(self.router(x), o.n_expert_used, normalize=True)
        x = ops.reshape(x, o.n_embd, 1, x.dim(1))
        out = self.down(ops.glu(self.gate(x, ids), self.up(x, ids)), ids)
        return nn.sum_experts(out * weights)


def _as_meant(scope: nn.Scope) -> nn.Scope:
    """The scope, with `up` and `down` exchanged where each has the other's shape: an old converter did that."""
    up, down = (f"{scope.prefix}ffn_{name}_exps.weight" for name in ("up", "down"))
    if up not in scope.weights or down not in scope.weights:
        return scope
    shape = tuple(scope.size(dim) for dim in SparseMLP.up.dims)
    if scope.weights[up].shape == shape or scope.weights[down].shape != shape:
        return scope
    return replace(scope, weights={**scope.weights, up: scope.weights[down], down: scope.weights[up]})


class Layer(nn.Module):
    """One block: attention, then feed-forward, each behind a norm and beside a residual."""

    attn_norm = nn.RMSNorm("attn_norm", "n_embd")
    attention = nn.Part(SelfAttention)
    ffn_norm = nn.RMSNorm("ffn_norm", "n_embd")

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        self.mlp: MLP | SparseMLP = SparseMLP(scope) if scope.options.n_expert else MLP(scope)

    def forward(self, x: Tensor, inputs: ModelInputs, factors: Tensor | None, cache: LayerView, o: Options,
                outputs: Tensor | None) -> Tensor:  # fmt: skip
        """x [n_embd, n] -> [n_embd, n]; only the rows of `outputs` when given (the last block)."""
        a = self.attention.forward(self.attn_norm(x, o.norm_eps), inputs.positions, factors, cache, o)
        if outputs is not None:
            a, x = ops.get_rows(a, outputs), ops.get_rows(x, outputs)
        x = a + x
        return self.mlp.forward(self.ffn_norm(x, o.norm_eps), o) + x


class Llama(nn.Module):
    """The whole model."""

    architecture = "llama"

    token_embd = nn.Embedding("token_embd", "n_embd", "n_vocab")
    rope_freqs = nn.Factors("rope_freqs", "n_rope_factors")
    layers = nn.Blocks(Layer, "n_layer")
    output_norm = nn.RMSNorm("output_norm", "n_embd")
    output = nn.Linear("output", "n_embd", "n_vocab", alt="token_embd")

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        if "token_embd.weight" not in weights:
            raise ModelFormatError("the file has no tensor token_embd.weight; is it a vocabulary-only file?")
        self.options = read_options(metadata, weights["token_embd.weight"].dim(1))
        scope = nn.Scope(weights, self.options)
        super().__init__(scope)
        self.unused_weights = tuple(sorted(set(weights) - scope.used))

    @property
    def n_vocab(self) -> int:
        """Length of a row of logits."""
        return self.options.n_vocab

    @property
    def n_embd(self) -> int:
        """Length of a hidden state."""
        return self.options.n_embd

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for."""
        return self.options.context_length

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """One head size for keys and values, one window for all layers."""
        o = self.options
        shape = LayerShape(kv_heads=o.n_head_kv, key_dim=o.head_dim, value_dim=o.head_dim, window=o.window)
        return (shape,) * o.n_layer

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: logits f32 [n_vocab, n_outputs]."""
        return self.output(self.hidden(inputs, cache))

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""
        o = self.options
        x = self.token_embd(inputs.tokens)
        for i, layer in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            x = layer.forward(x, inputs, self.rope_freqs.weight, cache, o, outputs)
        return self.output_norm(x, o.norm_eps)

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        """Keys f32 [head_dim, n_head_kv, n] at positions changed by deltas i32 [n]; all layers rotate alike."""
        return self.options.rope.shifted(keys, deltas, self.rope_freqs.weight)
