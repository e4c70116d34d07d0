"""What the operations on images and the rotation with several axes should compute, in plain numpy.

Like reference.py: four dimensions in numpy's order, [n, channels, height, width].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.ml.ops.reference import Array, yarn_range

Pair = tuple[int, int]


def pair(value: object) -> Pair:
    """(horizontal, vertical) of a number or two."""
    first, *rest = np.atleast_1d(np.asarray(value)).tolist()
    return int(first), int(rest[0] if rest else first)


# -- windows -----------------------------------------------------------------------------------------------------------


def _windows(x: Array, size: Pair, stride: Pair, padding: Pair, dilation: Pair, beyond: float) -> Array:
    """[n, c, oh, ow, kh, kw]"""
    (kw, kh), (sw, sh), (pw, ph), (dw, dh) = size, stride, padding, dilation
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=beyond)
    spread = np.lib.stride_tricks.sliding_window_view(padded, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), axis=(2, 3))
    return spread[:, :, ::sh, ::sw, ::dh, ::dw]


def im2col(shape: Sequence[int], x: Array, stride: Pair, padding: Pair, dilation: Pair) -> Array:
    """`shape` of the kernel in ggml's order -> [n, oh, ow, c * kh * kw]."""
    cut = _windows(x, (shape[0], shape[1]), stride, padding, dilation, 0.0).transpose(0, 2, 3, 1, 4, 5)
    return np.ascontiguousarray(cut).reshape(*cut.shape[:3], -1)


def conv_2d(kernel: Array, x: Array, stride: Pair, padding: Pair, dilation: Pair) -> Array:
    cut = _windows(x, kernel.shape[:1:-1], stride, padding, dilation, 0.0)
    return np.einsum("ncyxkl,mckl->nmyx", cut, kernel)


def pool_2d(x: Array, size: Pair, stride: Pair, padding: Pair, mode: str) -> Array:
    cut = _windows(x, size, stride, padding, (1, 1), 0.0 if mode == "avg" else -np.inf)
    return cut.mean(axis=(4, 5)) if mode == "avg" else cut.max(axis=(4, 5))


def pad(x: Array, widths: Sequence[Sequence[int]], mode: str) -> Array:
    """`widths` in ggml's order."""
    pairs = [(0, 0)] * (4 - len(widths)) + [(int(a), int(b)) for a, b in reversed(widths)]
    return np.pad(x, pairs, mode={"zero": "constant", "circular": "wrap", "reflect": "reflect"}[mode])  # type: ignore[call-overload]


# -- other sizes -------------------------------------------------------------------------------------------------------


def _matrix(old: int, new: int, mode: str, align_corners: bool, antialias: bool) -> Array:
    """Weights [new, old] along one side. Places are calculated in float32, as ggml does."""
    f = np.float32
    factor = f(new) / f(old)
    half = f(0.5)
    if align_corners:
        half = f(0)
        factor = f(new - 1) / f(old - 1) if new > 1 and old > 1 else factor
    at = np.arange(new).astype(f)
    out = np.zeros((new, old))
    if mode == "nearest":
        out[np.arange(new), (at / factor).astype(np.int64)] = 1
        return out
    centre = (at + half) / factor
    if antialias:
        support = max(f(1), f(1) / factor)
        out = np.maximum(0, 1 - np.abs(np.arange(old)[None] + 0.5 - centre[:, None]) / support).astype(np.float64)
        return out / out.sum(axis=1, keepdims=True)
    place = centre - half
    left = np.floor(place).astype(np.int64)
    between = (place - left).astype(np.float64)
    if mode == "bilinear":
        taps = {0: 1 - between, 1: between}
    else:
        taps = {i: _cubic(np.abs(between - i)) for i in (-1, 0, 1, 2)}
    for tap, weight in taps.items():
        np.add.at(out, (np.arange(new), np.clip(left + tap, 0, old - 1)), weight)
    return out


def _cubic(x: Array) -> Array:
    """Keys 1981, with alpha -0.75."""
    near = (1.25 * x - 2.25) * x * x + 1
    far = -0.75 * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, far)


def interpolate(x: Array, width: int, height: int, mode: str, *, align_corners: bool, antialias: bool) -> Array:
    down = _matrix(x.shape[2], height, mode, align_corners, antialias)
    across = _matrix(x.shape[3], width, mode, align_corners, antialias)
    return np.einsum("yh,nchw,xw->ncyx", down, x, across)


# -- rotation ----------------------------------------------------------------------------------------------------------


def _axis_of_pairs(pairs: int, sections: Sequence[int], mode: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each pair its axis and the exponent of its angle."""
    sizes = [*sections, 0, 0, 0][:4]
    axes: list[int] = []
    exponents: list[int] = []
    for pair_ in range(pairs):
        place = pair_ % sum(sizes)
        starts = np.cumsum([0, *sizes])
        if mode == "interleaved":
            axis = place % 3 if place < 3 * sizes[place % 3] else 3
        else:
            axis = next(a for a in range(4) if starts[a] <= place < starts[a + 1])
        axes.append(axis)
        exponents.append(place - int(starts[axis]) if mode == "vision" else pair_)
    return np.array(axes), np.array(exponents)


def rope_multi(
    x: Array, positions: NDArray, n_dims: int, sections: Sequence[int], *, mode: str = "sections",
    factors: Array | None = None, freq_base: float = 10000.0, freq_scale: float = 1.0, n_ctx_orig: int = 0,
    ext_factor: float = 0.0, attn_factor: float = 1.0, beta_fast: float = 32.0, beta_slow: float = 1.0,
) -> Array:  # fmt: skip
    """x [n3, n, heads, head_dim], positions [4, n]: Wang et al. 2024 (Qwen2-VL)."""
    turned = x.shape[-1] if mode == "vision" else n_dims
    axes, exponents = _axis_of_pairs(turned // 2, sections, mode)
    angle = positions.reshape(4, -1)[axes].T * freq_base ** (-2.0 * exponents / n_dims)
    if factors is not None:
        angle = angle / factors.reshape(-1)[: turned // 2]
    theta, size = angle * freq_scale, attn_factor
    if ext_factor != 0:
        low, high = yarn_range(n_dims, n_ctx_orig, freq_base, beta_fast, beta_slow)
        ramp = 1 - np.clip((np.arange(turned // 2) - low) / max(0.001, high - low), 0, 1)
        theta = theta * (1 - ramp * ext_factor) + angle * ramp * ext_factor
        size *= 1 + 0.1 * np.log(1 / freq_scale)
    cos, sin = np.cos(theta)[:, None] * size, np.sin(theta)[:, None] * size
    out = np.array(x, dtype=np.float64)
    first, second = x[..., : turned // 2], x[..., turned // 2 : turned]
    out[..., : turned // 2] = first * cos - second * sin
    out[..., turned // 2 : turned] = first * sin + second * cos
    return out
