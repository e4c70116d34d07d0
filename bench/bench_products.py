"""Which kernel is the fastest for a product with few rows of activations? ggml's mul_mat on the weights as they lie in
the file, the same on its repacked copy, and mul_mat_small_batch; one thread, random values.

The borders in `ml/kernel_choice.py` come from here; `kernel_choice.py` prints the table for one machine. Groups are
one shape, type and number of rows; within a group the kernels compare. Run:
`python -m pytest bench/bench_products.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ollama_engine.ml import ops
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.ops_small_batch import SMALL_BATCH_QUANTIZED
from ollama_engine.ml.placement import BackendParams
from ollama_engine.ml.quantize import quantize_rows
from ollama_engine.ml.storage import Storage, can_repack
from ollama_engine.ml.tensor import Tensor
from ollama_engine.ml.types import block_of

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROWS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 256]
SHAPES = [(2048, 8192), (2048, 2048), (8192, 2048)]
TYPES = [*SMALL_BATCH_QUANTIZED, "f16", "bf16"]
DISTINCT = 32
"""Rows of weights that differ: quantizing them all takes longer than measuring."""


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as one_thread:
        yield one_thread


@pytest.fixture(
    params=[(d, s) for d in TYPES for s in SHAPES], ids=lambda p: f"{p[0]}-{p[1][0]}x{p[1][1]}", scope="module"
)
def weights(request: pytest.FixtureRequest, backend: Backend) -> Iterator[dict[str, Tensor]]:
    """The same weights for each kernel: {"ggml": as in the file, "ggml repacked": where there is such a layout}."""
    dtype, (k, m) = request.param
    block, size = block_of(dtype)
    raw = np.empty((DISTINCT, k // block * size), np.uint8)
    quantize_rows(dtype, np.random.default_rng(0).normal(0, 1, (DISTINCT, k)).astype(np.float32), raw.reshape(-1))
    raw = np.tile(raw, (m // DISTINCT, 1))
    with Storage(backend, 1) as plain, Storage(backend, 1) as repacked:
        found = {"ggml": plain.add("w", dtype, (k, m))}
        plain.allocate(0)
        if can_repack(backend, dtype, (k, m)):
            found["ggml repacked"] = repacked.add("w", dtype, (k, m))
            repacked.allocate_repacked()
        for weight in found.values():
            weight.set_bytes(raw)
        yield found


@pytest.mark.parametrize("kernel", ["ggml", "ggml repacked", "mul_mat_small_batch"])
@pytest.mark.parametrize("rows", ROWS)
def test_product(
    benchmark: BenchmarkFixture, backend: Backend, weights: dict[str, Tensor], rows: int, kernel: str
) -> None:
    weight = weights["ggml"] if kernel == "mul_mat_small_batch" else weights.get(kernel)
    if weight is None:
        pytest.skip("this CPU has no repacked layout for the type")
    k, m = weights["ggml"].shape
    benchmark.group = f"{weights['ggml'].dtype} {k} x {m}, {rows:3} rows"
    values = np.random.default_rng(1).normal(0, 1, (rows, k)).astype(np.float32)
    with Context(backend) as ctx:
        x = ctx.input("f32", (k, rows))
        ctx.forward(ops.mul_mat_small_batch(weight, x) if kernel == "mul_mat_small_batch" else ops.mul_mat(weight, x))
        ctx.alloc()
        benchmark.pedantic(ctx.compute, setup=lambda: x.set(values), rounds=max(3, 160 // rows), warmup_rounds=1)
