"""The demo network in PyTorch: a compact llama (RMSNorm, RoPE, grouped-query attention, SwiGLU, tied embeddings).

The module tree carries GGUF's tensor names, and RoPE turns adjacent pairs of a head (`2i`, `2i + 1`) as GGUF's llama
architecture expects, so `export.py` writes the weights as they are, without permuting the query and key rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as fn


@dataclass(frozen=True)
class Shape:
    """Hyper-parameters of the network; every row length is a multiple of 32, the block size of Q8_0."""

    n_vocab: int = 2560
    n_ctx: int = 1024
    n_embd: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 768
    rope_base: float = 10000.0
    rms_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Values per attention head."""
        return self.n_embd // self.n_head


class RMSNorm(nn.Module):
    """Root mean square norm with a learned gain, computed in float32 (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return fn.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rope_table(shape: Shape) -> Tensor:
    """Cosines and sines for every position: float32 `[2, n_ctx, head_dim / 2]` (Su et al., 2021)."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    angles = torch.outer(torch.arange(shape.n_ctx, dtype=torch.float64), shape.rope_base**-half)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn adjacent pairs of `x`, `[batch, heads, positions, head_dim]`, by their position's angle."""
    cos, sin = table[:, : x.shape[2]].to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        kv = shape.n_head_kv * shape.head_dim
        self.head_dim = shape.head_dim
        self.attn_norm = RMSNorm(shape.n_embd, shape.rms_eps)
        self.attn_q = nn.Linear(shape.n_embd, shape.n_head * shape.head_dim, bias=False)
        self.attn_k = nn.Linear(shape.n_embd, kv, bias=False)
        self.attn_v = nn.Linear(shape.n_embd, kv, bias=False)
        self.attn_output = nn.Linear(shape.n_head * shape.head_dim, shape.n_embd, bias=False)
        self.ffn_norm = RMSNorm(shape.n_embd, shape.rms_eps)
        self.ffn_gate = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.ffn_up = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.ffn_down = nn.Linear(shape.n_ff, shape.n_embd, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attend(self.attn_norm(x), table)
        y = self.ffn_norm(x)
        out: Tensor = x + self.ffn_down(fn.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return out

    def attend(self, x: Tensor, table: Tensor) -> Tensor:
        """Causal grouped-query attention over `x`, `[batch, positions, n_embd]`."""
        q, k, v = (self.split(f(x)) for f in (self.attn_q, self.attn_k, self.attn_v))
        groups = q.shape[1] // k.shape[1]
        # Repeated by hand: the fast CPU kernel wants equal head counts.
        k = rotate(k, table).repeat_interleave(groups, dim=1)
        y = fn.scaled_dot_product_attention(rotate(q, table), k, v.repeat_interleave(groups, dim=1), is_causal=True)
        out: Tensor = self.attn_output(y.transpose(1, 2).flatten(2))
        return out

    def split(self, x: Tensor) -> Tensor:
        """`[batch, positions, heads * head_dim]` to `[batch, heads, positions, head_dim]`."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class DemoModel(nn.Module):
    """Token ids `[batch, positions]` to logits `[batch, positions, n_vocab]`."""

    rope: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.output_norm = RMSNorm(shape.n_embd, shape.rms_eps)
        self.register_buffer("rope", rope_table(shape), persistent=False)
        self.apply(self._start)

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Block):
            # Keeps the stream's variance independent of depth (GPT-2's rule).
            for out in (module.attn_output, module.ffn_down):
                nn.init.normal_(out.weight, std=0.02 / (2 * self.shape.n_layer) ** 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, self.rope)
        return fn.linear(self.output_norm(x), self.token_embd.weight)
