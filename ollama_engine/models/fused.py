"""Attention and feed-forward blocks whose projections are rows of one matrix (Phi-3, Nomic Embed, ModernBERT)."""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import Attention
from ollama_engine.models.options import Options


class FusedAttention(Attention):
    """Queries, keys and values are rows of one product, in this order."""

    qkv = nn.Linear("attn_qkv", "n_embd", "qkv_size")

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.qkv(x)
        return (
            _heads(rows, o.head_dim, 0, o.n_head),
            _heads(rows, o.head_dim, o.n_head, o.n_head_kv),
            ops.cont(_heads(rows, o.head_dim, o.n_head + o.n_head_kv, o.n_head_kv)),  # the cache takes no views
        )


def _heads(rows: Tensor, head_dim: int, first: int, count: int) -> Tensor:
    """`count` heads of rows [head_dim * all heads, n], from the one numbered `first` on: [head_dim, count, n]."""
    size = rows.stride(0) * head_dim
    return ops.view(rows, (head_dim, count, rows.dim(1)), (size, rows.stride(1)), first * size)


class FusedMLP(nn.Module):
    """A gated block, such as SwiGLU, whose gate and up projections are the halves of one product."""

    activation: str = "silu"

    gate_up = nn.Linear("ffn_up", "n_embd", "n_ff_twice")
    down = nn.Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        rows = self.gate_up(x)
        gate, up = columns(rows, *(rows.dim(0) // 2,) * 2)
        return self.down(ops.glu(gate, up, self.activation))


def columns(x: Tensor, *sizes: int) -> list[Tensor]:
    """Copies of consecutive parts of x [all sizes, n], [size, n] each."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(ops.cont(ops.view(x, (size, x.dim(1)), (x.stride(1),), begin * x.stride(0))))
        begin += size
    return parts
