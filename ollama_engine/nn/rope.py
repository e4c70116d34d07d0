"""Rotary position embedding with its scaling variants, read from a model's metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml import ops
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotation of the first `n_dims` of each head (Su et al. 2021).

    `mode` "norm" turns adjacent pairs, "neox" halves. A position p turns pair j by p * scale * base^(-2j / n_dims),
    divided by factor j where the model has factors. `ext_factor` above 0 is YaRN (Peng et al. 2023), for which
    ggml multiplies the result by attn_factor * (1 + 0.1 ln(1 / scale)).
    """

    n_dims: int
    mode: str = "norm"
    base: float = 10000.0
    scale: float = 1.0
    original_context: int = 0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __call__(self, x: Tensor, positions: Tensor, factors: Tensor | None = None) -> Tensor:
        """x [head_dim, heads, n] at positions i32 [n]; factors f32 [n_dims / 2]."""
        return ops.rope(
            x,
            positions,
            self.n_dims,
            mode=self.mode,
            factors=factors,
            freq_base=self.base,
            freq_scale=self.scale,
            n_ctx_orig=self.original_context,
            ext_factor=self.ext_factor,
            attn_factor=self.attn_factor,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
        )


def read_rope(metadata: Metadata, n_dims: int, mode: str = "norm") -> Rope:
    """Base, scaling type and factors of a model; llama.cpp's key names and Ollama's shorter ones are both read."""
    kind = metadata.str("rope.scaling.type", "linear")
    factor = metadata.f32("rope.scaling.factor", None) or metadata.f32("rope.scale_linear", None) or 1.0
    base = metadata.f32("rope.freq_base", 10000.0)
    trained = metadata.u32("rope.scaling.original_context_length", None) or metadata.u32("context_length")
    attn_factor = metadata.f32("rope.scaling.attn_factor", 1.0)
    if kind == "none":
        factor = 1.0
    if kind in ("none", "linear"):
        return Rope(n_dims=n_dims, mode=mode, base=base, scale=1 / factor, original_context=trained,
                    attn_factor=attn_factor)  # fmt: skip
    if kind == "longrope":
        return Rope(n_dims=n_dims, mode=mode, base=base, original_context=trained, attn_factor=attn_factor)
    if kind != "yarn":
        raise UnsupportedModelError(f"rope.scaling.type {kind!r} is unknown; known: none, linear, yarn, longrope")
    log_multiplier = _yarn(metadata, "log_multiplier", 0.0)
    return Rope(
        n_dims=n_dims,
        mode=mode,
        base=base,
        scale=1 / factor,
        original_context=trained,
        ext_factor=_yarn(metadata, "ext_factor", _yarn_old(metadata, "extrapolation_factor", 1.0)),
        attn_factor=attn_factor * _yarn(metadata, "attn_factor", 1.0) / (1 + log_multiplier * math.log(factor)),
        beta_fast=_yarn(metadata, "beta_fast", _yarn_old(metadata, "beta_fast", 32.0)),
        beta_slow=_yarn(metadata, "beta_slow", _yarn_old(metadata, "beta_slow", 1.0)),
    )


def _yarn(metadata: Metadata, name: str, default: float) -> float:
    return metadata.f32(f"rope.scaling.yarn_{name}", default)


def _yarn_old(metadata: Metadata, name: str, default: float) -> float:
    return metadata.f32(f"rope.scaling.{name}", default)
