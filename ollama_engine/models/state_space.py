"""State-space layers of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060), and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.recurrent import ssm_state_size
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.options import Options, read_taps

LARGEST = 256
"""Most numbers of a state for each of a head's dimensions: `ops.ssm_scan`."""


@dataclass(frozen=True, kw_only=True)
class StateSpaceOptions(Options):
    """Options of a model with state-space layers."""

    n_taps: int
    n_ssm_heads: int
    n_groups: int
    """Groups of heads that share what moves a state and what reads it; each is normalized alone."""
    d_state: int
    d_inner: int
    """Numbers of all heads together."""

    @property
    def ssm_head_dim(self) -> int:
        """Numbers of one head."""
        return self.d_inner // self.n_ssm_heads

    @property
    def group_size(self) -> int:
        """Numbers of one group of heads."""
        return self.d_inner // self.n_groups

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: the heads' inputs, what moves the states, and what reads them."""
        return self.d_inner + 2 * self.n_groups * self.d_state

    @property
    def ssm_in_size(self) -> int:
        """Rows of the projection into a layer: gates, what is convolved, and a step size for each head."""
        return self.d_inner + self.conv_size + self.n_ssm_heads

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """The recurrent state of a layer: the convolution's window, and the heads' matrices with their scales."""
        matrices = ssm_state_size(self.ssm_head_dim, self.d_state, self.n_ssm_heads)
        return (self.conv_size, self.n_taps - 1), (matrices,)


def read_state_space(metadata: Metadata) -> dict[str, Any]:
    """The fields of StateSpaceOptions. Raises ModelFormatError."""
    d_inner, d_state = metadata.u32("ssm.inner_size"), metadata.u32("ssm.state_size")
    n_heads, n_groups = metadata.u32("ssm.time_step_rank"), metadata.u32("ssm.group_count", 1)
    if min(d_inner, n_heads, n_groups) < 1 or d_inner % n_heads or n_heads % n_groups:
        raise ModelFormatError(
            f"ssm.inner_size {d_inner} is a multiple of ssm.time_step_rank {n_heads}, and that one of ssm.group_count "
            f"{n_groups}"
        )
    if not 1 <= d_state <= LARGEST:
        raise ModelFormatError(f"ssm.state_size is 1 to {LARGEST}, got {d_state}")
    return {
        "n_taps": read_taps(metadata, "ssm.conv_kernel"), "n_ssm_heads": n_heads, "n_groups": n_groups,
        "d_state": d_state, "d_inner": d_inner,
    }  # fmt: skip


class StateSpace(nn.Module):
    """Inputs are convolved, move a state of each head that decays, and are read from it; then a gate and a norm."""

    into = nn.Linear("ssm_in", "n_embd", "ssm_in_size")
    conv = nn.CausalConv("ssm_conv1d", "n_taps", "conv_size")
    dt = nn.Vector("ssm_dt.bias", "n_ssm_heads")
    a = nn.Vector("ssm_a", 1, "n_ssm_heads")
    d = nn.Vector("ssm_d", 1, "n_ssm_heads")
    norm = nn.RMSNorm("ssm_norm", "group_size", "n_groups")
    out = nn.Linear("ssm_out", "d_inner", "n_embd")

    def forward(self, x: Tensor, step: LayerStep, o: StateSpaceOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        rows, n = self.into(x), x.dim(1)
        gate = ops.view(rows, (o.d_inner, n), (rows.stride(1),))
        convolved = ops.view(rows, (o.conv_size, n), (rows.stride(1),), o.d_inner * rows.stride(0))
        convolved = self.conv(convolved, step.cache, silu=True)
        dt = ops.view(rows, (o.n_ssm_heads, n), (rows.stride(1),), (o.d_inner + o.conv_size) * rows.stride(0))
        dt = ops.unary(dt + self.dt.tensor, "softplus")
        x = part(convolved, 0, o.ssm_head_dim, o.n_ssm_heads)
        b = part(convolved, o.d_inner, o.d_state, o.n_groups)
        c = part(convolved, o.d_inner + o.n_groups * o.d_state, o.d_state, o.n_groups)
        y = nn.ssm_scan(x, dt, self.a.tensor, b, c, self.d.tensor, step.cache)
        y = ops.glu(gate, ops.reshape(y, o.d_inner, n))
        if self.norm:
            y = self.norm(ops.reshape(y, o.group_size, o.n_groups, n), o.norm_eps)
        return self.out(ops.reshape(y, o.d_inner, n))


def part(x: Tensor, first: int, size: int, count: int) -> Tensor:
    """A view of `count` heads of `size` numbers in x [m, n], from number `first` on: [size, count, n]."""
    return ops.view(x, (size, count, x.dim(1)), (size * x.stride(0), x.stride(1)), first * x.stride(0))
