"""The least graph that computes something."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor


def doubled(ctx: Context, values: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """An input that has these values, in rows, and an output with twice as much, computed."""
    x = ctx.input("f32", values.shape[::-1])
    y = ops.scale(x, 2.0)
    ctx.forward(y)
    ctx.alloc()
    x.set(values)
    ctx.compute()
    return x, y
