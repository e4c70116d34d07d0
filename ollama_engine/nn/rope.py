"""Rotary position embedding with its scaling variants, read from a model's metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor

_INT32_MAX = 2**31 - 1


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
        return ops.rope(x, positions, self.n_dims, mode=self.mode, factors=factors, **self._angles)

    @property
    def _angles(self) -> dict[str, Any]:
        """The numbers that define the angles, as options of ops.rope."""
        return {
            "freq_base": self.base,
            "freq_scale": self.scale,
            "n_ctx_orig": self.original_context,
            "ext_factor": self.ext_factor,
            "attn_factor": self.attn_factor,
            "beta_fast": self.beta_fast,
            "beta_slow": self.beta_slow,
        }

    @property
    def yarn_magnitude(self) -> float:
        """The factor that ggml applies to the result besides attn_factor; 1 without YaRN."""
        return yarn_magnitude(self.scale) if self.ext_factor else 1.0

    def yarn_divisors(self) -> list[float]:
        """YaRN's divisor for the angle of each pair, [n_dims / 2], with a ramp whose ends are not rounded.

        Between the dimension that turns beta_fast times in the original context and the one that turns beta_slow times,
        angles change linearly from those of the position to those of the scaled position (Peng et al. 2023).
        """

        def dimension(turns: float) -> float:
            wavelengths = self.original_context / (2 * math.pi * turns)
            return self.n_dims * math.log(wavelengths) / (2 * math.log(self.base))

        low = max(dimension(self.beta_fast), 0.0)
        high = min(dimension(self.beta_slow), self.n_dims - 1.0)
        ramp = [min(1.0, max(0.0, (j - low) / max(high - low, 1e-3))) for j in range(self.n_dims // 2)]
        unscaled = [self.ext_factor * (1 - r) for r in ramp]
        return [1 / (self.scale * (1 - u) + u) for u in unscaled]

    def shifted(self, keys: Tensor, deltas: Tensor, factors: Tensor | None = None) -> Tensor:
        """Rotated keys moved to other positions: their own plus `deltas` i32 [n].

        Angles are linear in the position, so rotating by the difference is enough. The keys already have YaRN's
        magnitude, so that factor is cancelled.
        """
        return replace(self, attn_factor=1 / self.yarn_magnitude)(keys, deltas, factors)


@dataclass(frozen=True, kw_only=True)
class SectionedRope(Rope):
    """Rotation of halves by several axes (M-RoPE, Wang et al. 2024): each pair turns by its axis' position.

    The angles of a pair are those of `Rope`. Where all axes have the same position, as in text, so is the result; keys
    that move by the same number on all axes are `shifted` as with one axis.
    """

    sections: tuple[int, ...]
    """Pairs that turn by each axis, in the order of pairs."""
    interleaved: bool = False
    """Whether neighbouring pairs turn by different axes: time, height and width in turn, as far as sections reach."""

    def __call__(self, x: Tensor, positions: Tensor, factors: Tensor | None = None) -> Tensor:
        """x [head_dim, heads, n] at positions i32 [n, 4], or [n] where all axes are the same."""
        if positions.dim(1) == 1:
            return super().__call__(x, positions, factors)
        mode = "interleaved" if self.interleaved else "sections"
        return ops.rope_multi(x, positions, self.n_dims, self.sections, mode=mode, factors=factors, **self._angles)


def yarn_magnitude(scale: float) -> float:
    """YaRN's factor on queries and keys for scaled positions (Peng et al. 2023). ggml applies it by itself."""
    return 1 + 0.1 * math.log(1 / scale)


def read_rope(metadata: Metadata, n_dims: int, mode: str = "norm", *, longrope: bool = False) -> Rope:
    """The rotation of a model, from its metadata. Reads llama.cpp's key names and Ollama's shorter ones.

    `longrope` accepts that scaling type: its factors are tensors, which the model binds itself.

    Raises ModelFormatError for numbers that cannot define a rotation, UnsupportedModelError for an unknown scaling.
    """
    kind = metadata.str("rope.scaling.type", "linear")
    kinds = ("none", "linear", "yarn", *(["longrope"] if longrope else []))
    if kind not in kinds:
        raise UnsupportedModelError(f"rope.scaling.type {kind!r} is not supported; supported: {', '.join(kinds)}")
    factor = metadata.f32("rope.scaling.factor", None) or metadata.f32("rope.scale_linear", None) or 1.0
    trained = metadata.u32("rope.scaling.original_context_length", 0) or metadata.u32("context_length")
    rope = Rope(
        n_dims=n_dims,
        mode=mode,
        base=metadata.f32("rope.freq_base", 10000.0),
        scale=1.0 if kind in ("none", "longrope") else 1 / _within("rope.scaling.factor", factor, 1e-6, 1e6),
        original_context=min(trained, _INT32_MAX),
        attn_factor=metadata.f32("rope.scaling.attn_factor", 1.0),
    )
    check_base("rope.freq_base", rope.base)
    _within("rope.scaling.attn_factor", rope.attn_factor, 1e-6, 1e6)
    return _with_yarn(rope, metadata) if kind == "yarn" else rope


def check_base(name: str, base: float) -> float:
    """Return `base`. Raises ModelFormatError where it cannot define a rotation."""
    return _within(name, base, 1 + 1e-6, 1e30)


def _with_yarn(rope: Rope, metadata: Metadata) -> Rope:
    # Not read here: rope.scaling.yarn_log_multiplier, which has another meaning in each architecture that uses it.
    # yarn_attn_factor is the whole magnitude, as in the published config; ggml applies a part of it by itself.
    magnitude = metadata.f32("rope.scaling.yarn_attn_factor", None)
    if magnitude is not None:
        magnitude = _within("rope.scaling.yarn_attn_factor", magnitude, 1e-6, 1e6) / yarn_magnitude(rope.scale)
    return replace(
        rope,
        ext_factor=_either(metadata, "yarn_ext_factor", "extrapolation_factor", 1.0),
        attn_factor=rope.attn_factor * (1.0 if magnitude is None else magnitude),
        beta_fast=_within("beta_fast", _either(metadata, "yarn_beta_fast", "beta_fast", 32.0), 1e-6, 1e6),
        beta_slow=_within("beta_slow", _either(metadata, "yarn_beta_slow", "beta_slow", 1.0), 1e-6, 1e6),
    )


def _either(metadata: Metadata, name: str, other: str, default: float) -> float:
    """The value of llama.cpp's key `name`, else of Ollama's key `other`, else `default`."""
    return metadata.f32(f"rope.scaling.{name}", metadata.f32(f"rope.scaling.{other}", default))


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ModelFormatError(f"{name} is {value:g} in the metadata, expected {low:g} to {high:g}")
    return value
