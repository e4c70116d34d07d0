"""Gated delta net: the linear attention of Qwen3-Next and Qwen3.5 (Yang et al. 2025), and its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.gguf.next_tokens import n_blocks
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, heads
from ollama_engine.models.options import Options
from ollama_engine.models.state_space import part

L2_EPS = 1e-6
"""Added to the square of a query's or key's length."""


@dataclass(frozen=True, kw_only=True)
class DeltaNetOptions(Options):
    """Options of a model with delta nets."""

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    """Numbers in a key and in a value."""
    n_taps: int
    grouped: bool
    """Whether neighbouring heads of values share a head of keys; otherwise heads repeat from the first one on."""

    @property
    def value_size(self) -> int:
        """Numbers in the values of one token, in a delta net."""
        return self.n_value_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.n_key_heads * self.key_dim + self.value_size

    @property
    def n_value_heads_twice(self) -> int:
        """Rows of a projection to two numbers for each head."""
        return 2 * self.n_value_heads

    @property
    def into_size(self) -> int:
        """Rows of a projection to queries, keys, values and gates."""
        return self.conv_size + self.value_size

    @property
    def q_size_twice(self) -> int:
        """Rows of the projection to queries and gates, in attention."""
        return 2 * self.q_size

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """The recurrent state of a delta net: the convolution's window, and a matrix for each head."""
        return (self.conv_size, self.n_taps - 1), (self.value_dim, self.key_dim, self.n_value_heads)


def read_delta_net(metadata: Metadata, *, grouped: bool) -> dict[str, Any]:
    """The fields of DeltaNetOptions. Raises ModelFormatError."""
    n_heads, inner = metadata.u32("ssm.time_step_rank"), metadata.u32("ssm.inner_size")
    n_key_heads, key_dim = metadata.u32("ssm.group_count"), metadata.u32("ssm.state_size")
    n_taps = metadata.u32("ssm.conv_kernel")
    if min(n_heads, n_key_heads, key_dim, inner) < 1 or inner % n_heads or n_heads % n_key_heads or n_taps < 2:
        raise ModelFormatError(
            f"ssm.inner_size {inner} is a multiple of ssm.time_step_rank {n_heads}, that one of ssm.group_count "
            f"{n_key_heads}; ssm.state_size {key_dim} is at least 1, ssm.conv_kernel {n_taps} at least 2"
        )
    return {
        "n_key_heads": n_key_heads, "n_value_heads": n_heads, "key_dim": key_dim, "value_dim": inner // n_heads,
        "n_taps": n_taps, "grouped": not metadata.bool("ssm.v_head_reordered", not grouped),
    }  # fmt: skip


def read_linear_layers(metadata: Metadata, o: Options) -> tuple[bool, ...]:
    """Whether each layer has attention; the others have a delta net. Converters say it in three ways."""
    if o.attends:
        return o.attends
    recurrent = metadata.bools("attention.recurrent_layers", sum(n_blocks(metadata)), None)
    if recurrent is not None:
        return tuple(not flag for flag in recurrent[: o.n_layer])
    interval = metadata.u32("full_attention_interval", 4)
    if interval < 1:
        raise ModelFormatError("full_attention_interval must not be 0")
    return tuple((i + 1) % interval == 0 for i in range(o.n_layer))


class Projections(nn.Module):
    """Queries, keys and values; gates."""

    qkv = nn.Linear("attn_qkv", "n_embd", "conv_size")
    gate = nn.Linear("attn_gate", "n_embd", "value_size")

    @property
    def maps(self) -> tuple[nn.Linear, ...]:
        return self.qkv, self.gate

    def split(self, results: Sequence[Tensor], o: DeltaNetOptions) -> tuple[Tensor, Tensor]:
        """The results of `maps` -> [conv_size, n], [value_size, n]."""
        qkv, gate = results
        return qkv, gate


class DeltaNet(nn.Module):
    """Queries, keys and values are convolved; a matrix for each head maps keys to values, and is corrected by each."""

    projections: nn.Part[Any] = nn.Part(Projections)
    conv = nn.CausalConv("ssm_conv1d", "n_taps", "conv_size")
    dt = nn.Vector("ssm_dt.bias", "n_value_heads", alt="ssm_dt")
    a = nn.Vector("ssm_a", "n_value_heads")
    norm = nn.RMSNorm("ssm_norm", "value_dim")
    out = nn.Linear("ssm_out", "value_size", "n_embd")

    @property
    def strength_maps(self) -> tuple[nn.Linear, ...]:
        """Maps to how strong the update and the decay are."""
        raise NotImplementedError

    def strengths(self, results: Sequence[Tensor], o: DeltaNetOptions) -> tuple[Tensor, Tensor]:
        """The results of `strength_maps` -> the raw strength of the update, and of the decay, [n_value_heads, n]."""
        raise NotImplementedError

    def forward(self, x: Tensor, step: LayerStep, o: DeltaNetOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        maps = self.projections.maps
        results = nn.linears(x, *maps, *self.strength_maps)
        qkv, gate = self.projections.split(results[: len(maps)], o)
        beta, alpha = self.strengths(results[len(maps) :], o)
        g = ops.unary(alpha + self.dt.tensor, "softplus") * self.a.tensor
        qkv = self.conv(qkv, step.cache, silu=True)
        key_size = o.n_key_heads * o.key_dim
        q, k = (part(qkv, at, o.key_dim, o.n_key_heads) for at in (0, key_size))
        v = part(qkv, 2 * key_size, o.value_dim, o.n_value_heads)
        beta = ops.unary(beta, "sigmoid")
        y = nn.delta_net(q, k, v, g, beta, step.cache, grouped=o.grouped, eps=L2_EPS)
        y = ops.glu(heads(gate, o.value_dim), self.norm(y, o.norm_eps))
        return self.out(ops.reshape(y, o.value_size, x.dim(1)))
