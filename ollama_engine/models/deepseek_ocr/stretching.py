"""Tables of position embeddings for pictures of another side, as torch's `interpolate` makes them."""

from __future__ import annotations

import numpy as np

from ollama_engine.input import FloatArray
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

__all__ = ["bicubic", "linear", "stretched"]


def bicubic(n: int, places: int) -> FloatArray:
    """What each of `places` counts for each of `n` others along the same axis, f32 [n, places]; with `antialias`."""
    scale = places / n
    x = np.abs(np.arange(places) + 0.5 - (np.arange(n) + 0.5)[:, None] * scale) / max(scale, 1.0)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    parts = np.where(x < 1, near, np.where(x < 2, far, 0))
    found: FloatArray = (parts / parts.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def linear(n: int, places: int) -> FloatArray:
    """The same without smoothing, from the two nearest places."""
    at = np.clip((np.arange(n) + 0.5) * (places / n) - 0.5, 0, places - 1)
    found: FloatArray = np.maximum(1 - np.abs(np.arange(places) - at[:, None]), 0).astype(np.float32)
    return found


def stretched(ctx: Context, table: Tensor, side: int) -> Tensor:
    """A square of embeddings f32 [n_embd, s, s] for one of another side, [n_embd, side, side]."""
    if table.dim(1) == side:
        return table
    parts = ctx.from_floats(bicubic(side, table.dim(1)))
    for _ in range(2):  # one axis, and then the other
        table = ops.mul_mat(parts, ops.cont(ops.permute(table, 2, 0, 1, 3)))
    return ops.cont(ops.permute(table, 2, 0, 1, 3))
