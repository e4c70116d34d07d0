"""What decoders that are made of equal blocks share: attention, the usual block, the way from tokens to logits.

A model's file says what its blocks are. Blocks get what changes from layer to layer as a `Step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.options import DecoderOptions, read_decoder


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
    def n_embd(self) -> int:
        """Length of a hidden state."""
        return self.options.n_embd

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
        """Hidden states [n_embd, n] -> f32 [n_vocab, n]."""
        return self.output(x)

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: logits f32 [n_vocab, n_outputs]."""
        return self.logits(self.hidden(inputs, cache))

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""
        o = self.options
        x, factors = self.embed(inputs.tokens), self.rope_factors(inputs.tokens)
        for i, layer in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            x = layer.forward(x, Step(inputs.positions, o.ropes[i], factors, cache, outputs), o)
        return self.output_norm(x, o.norm_eps)

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        """Keys f32 [head_dim, n_head_kv, n] of a layer at positions changed by deltas i32 [n]."""
        rope = self.options.ropes[layer]
        return keys if rope is None else rope.shifted(keys, deltas, self.rope_factors(keys))
