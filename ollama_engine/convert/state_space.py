"""Tensors and keys of Mamba-2 layers, which several architectures have beside others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ollama_engine.convert.architecture import Sizes, TensorMap, linear
from ollama_engine.convert.decoder import BLOCK
from ollama_engine.convert.transforms import Transform, squeeze

__all__ = ["state_space", "state_space_keys", "state_space_sizes"]

COLUMN = Transform(lambda values, sizes: values[:, None], lambda shape, sizes: (*shape, 1))
DECAY = Transform(lambda values, sizes: -np.exp(values[:, None]), lambda shape, sizes: (*shape, 1), arithmetic=True)
"""The logarithm of a decay becomes the decay, below 0."""
GROUPS = Transform(
    lambda values, sizes: values.reshape(sizes["n_groups"], -1),
    lambda shape, sizes: (sizes["n_groups"], shape[0] // sizes["n_groups"]),
    entrywise=False,
)


def state_space(source: str) -> tuple[TensorMap, ...]:
    """A layer's tensors; in the checkpoint, `source` is before their names."""
    return (
        *linear(BLOCK + "ssm_in", source + "in_proj", "ssm_in_size", "n_embd"),
        TensorMap(BLOCK + "ssm_conv1d.weight", source + "conv1d.weight", ("conv_size", 1, "n_taps"), squeeze(1)),
        TensorMap(BLOCK + "ssm_conv1d.bias", source + "conv1d.bias", ("conv_size",), optional=True),
        TensorMap(BLOCK + "ssm_dt.bias", source + "dt_bias", ("n_ssm_heads",)),
        TensorMap(BLOCK + "ssm_a", source + "A_log", ("n_ssm_heads",), DECAY),
        TensorMap(BLOCK + "ssm_d", source + "D", ("n_ssm_heads",), COLUMN),
        TensorMap(BLOCK + "ssm_norm.weight", source + "norm.weight", ("d_inner",), GROUPS),
        *linear(BLOCK + "ssm_out", source + "out_proj", "n_embd", "d_inner"),
    )


def state_space_sizes(n_heads: int, head_dim: int, n_groups: int, d_state: int, n_taps: int) -> dict[str, int]:
    """The sizes that `state_space` names."""
    d_inner = n_heads * head_dim
    conv_size = d_inner + 2 * n_groups * d_state
    return {
        "n_ssm_heads": n_heads, "d_inner": d_inner, "n_groups": n_groups, "d_state": d_state, "n_taps": n_taps,
        "conv_size": conv_size, "ssm_in_size": d_inner + conv_size + n_heads,
    }  # fmt: skip


def state_space_keys(sizes: Sizes) -> Mapping[str, Any]:
    """Keys by which a file says these sizes."""
    return {
        "ssm.conv_kernel": sizes["n_taps"],
        "ssm.inner_size": sizes["d_inner"],
        "ssm.state_size": sizes["d_state"],
        "ssm.time_step_rank": sizes["n_ssm_heads"],
        "ssm.group_count": sizes["n_groups"],
    }
