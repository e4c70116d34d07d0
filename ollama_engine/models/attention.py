"""Attention of decoder blocks, and `LayerStep`: positions, rotation and cache of one layer in one step.

A model's file replaces how queries, keys and values are made; `fused` has them as rows of one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine import nn
from ollama_engine.kvcache import LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.options import Options


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A block's arguments besides its input: positions, rotation and cache of its layer."""

    positions: Tensor
    rope: nn.Rope | None
    factors: Tensor | None
    cache: LayerView
    outputs: Tensor | None
    """In the last layer, the rows to compute; None for all."""
    temperature: Tensor | None = None
    """f32 [1, 1, n]: what queries are multiplied by; None for 1."""

    def rotate(self, heads: Tensor) -> Tensor:
        """Queries or keys [head_dim, heads, n] at the step's positions."""
        return heads if self.rope is None else self.rope(heads, self.positions, self.factors)

    def sharpened(self, queries: Tensor) -> Tensor:
        """Queries [head_dim, heads, n] times the step's temperature."""
        if self.temperature is None:
            return queries
        head_dim, n_head, n = queries.dim(0), queries.dim(1), queries.dim(2)
        flat = nn.scaled_rows(ops.reshape(queries, head_dim * n_head, n), self.temperature)
        return ops.reshape(flat, head_dim, n_head, n)

    def output_rows(self, x: Tensor) -> Tensor:
        """The rows of x [m, n] that a later block or the caller needs."""
        return x if self.outputs is None else ops.get_rows(x, self.outputs)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions. A subclass says how queries, keys and values are made."""

    output = nn.Linear("attn_output", "q_size", "n_embd")

    sinks: Tensor | None = None

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        """x [n_embd, n] -> queries [head_dim, n_head, n], keys and values [head_dim, n_head_kv, n]."""
        raise NotImplementedError

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        q, k, v = self.project(x, o)
        q, k = step.sharpened(step.rotate(q)), step.rotate(k)
        step.cache.put(k, v)
        return self.output(
            nn.attention(q, step.cache, o.attention_scale, softcap=o.attention_softcap, sinks=self.sinks)
        )


class SelfAttention(Attention):
    q = nn.Linear("attn_q", "n_embd", "q_size")
    k = nn.Linear("attn_k", "n_embd", "kv_size")
    v = nn.Linear("attn_v", "n_embd", "kv_size")

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = nn.linears(x, self.q, self.k, self.v)
        return heads(q, o.head_dim), heads(k, o.head_dim), heads(v, o.head_dim)


def heads(x: Tensor, head_dim: int) -> Tensor:
    """[head_dim * heads, n] -> [head_dim, heads, n]."""
    return ops.reshape(x, head_dim, x.dim(0) // head_dim, x.dim(1))
