"""Rotation of keys and values before they are quantized, so that a few large numbers do not spoil a block's scale.

A Hadamard transform spreads each number over all of its run, and is its own inverse. Products of rotated queries with
rotated keys are those of the plain ones, and a sum of rotated values is rotated back once (QuaRot, Ashkboos 2024).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import cast, get_args

import numpy as np

from ollama_engine.config import CacheType
from ollama_engine.input import FloatArray
from ollama_engine.kvcache.config import LayerShape
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.ops.operands import on_cpu_alone

ROTATED = tuple(dtype for dtype in get_args(CacheType) if block_of(dtype)[0] > block_of(dtype)[1])
"""Types that are stored rotated: those that take less than a byte for a number. With q8_0 a model predicts as well as
with f32 without that."""
SMALLEST, LARGEST = 32, 256
"""Numbers of a run. Below a block of the type little is gained."""


def rotation_of(layer: LayerShape, dtype: str) -> int:
    """Numbers of the runs in which a layer's keys and values are rotated, stored as `dtype`; 0: they are not.

    The largest power of two that divides both sizes of a head. So where values are a part of the keys (latent
    attention), what is rotated back is whole runs.
    """
    common = math.gcd(layer.key_dim, layer.value_dim)
    run = min(common & -common, LARGEST)
    return run if dtype in ROTATED and run >= SMALLEST else 0


def rotated(x: Tensor, run: int) -> Tensor:
    """Tensor f32 [dim, ...] whose runs of so many numbers are rotated; `x` itself for 0. Twice gives `x` again."""
    if not run:
        return x
    plain = x if x.contiguous else ops.cont(x)
    if on_cpu_alone(x):
        return ops.hadamard(plain, run)
    matrix = cast("Context", x.owner).shared_floats(hadamard_matrix(run))
    rows = ops.reshape(plain, run, math.prod(x.shape) // run)
    return ops.reshape(ops.mul_mat(matrix, rows, precise=True), *x.shape)


@lru_cache(maxsize=4)
def hadamard_matrix(order: int) -> FloatArray:
    """Sylvester's Hadamard matrix over the square root of its order, float32 [order, order]; it is symmetric."""
    matrix = np.ones((1, 1), dtype=np.float32)
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    scaled: FloatArray = (matrix / math.sqrt(order)).astype(np.float32)
    return scaled
