"""Which kernel is the fastest for a product of quantized experts with few tokens? ggml's mul_mat_id on the weights as
they lie in the file, the same on their repacked copy, and mul_mat_id_small_batch; one thread, random values and routes.

The borders `per_expert` in `ml/kernel_choice.py` come from here. Groups are one type, model and number of tokens;
within a group the kernels compare. Run:
`python -m pytest bench/bench_experts.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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

TOKENS = [1, 2, 4, 8, 64, 512]
DISTINCT = 32
"""Rows of weights that differ: quantizing them all takes longer than measuring."""


@dataclass(frozen=True)
class Experts:
    """One matrix of all experts of a layer; `shared` where all experts of a token take the same row (gate and up)."""

    name: str
    k: int
    m: int
    n_expert: int
    used: int
    shared: bool


QWEN = [Experts("qwen3-moe gate", 2048, 768, 64, 8, True), Experts("qwen3-moe down", 768, 2048, 64, 8, False)]
OSS = [Experts("gpt-oss gate", 2880, 2880, 32, 4, True), Experts("gpt-oss down", 2880, 2880, 32, 4, False)]
TYPES = [dtype for dtype in SMALL_BATCH_QUANTIZED if dtype != "mxfp4"]
CASES = [*((d, e) for d in TYPES for e in QWEN), *(("mxfp4", e) for e in OSS)]


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as one_thread:
        yield one_thread


@pytest.fixture(params=CASES, ids=lambda p: f"{p[0]}-{p[1].name}", scope="module")
def experts(request: pytest.FixtureRequest, backend: Backend) -> Iterator[tuple[Experts, dict[str, Tensor]]]:
    """The same weights for each kernel: {"ggml": as in the file, "ggml repacked": where there is such a layout}."""
    dtype, shape = request.param
    block, size = block_of(dtype)
    raw = np.empty((DISTINCT, shape.k // block * size), np.uint8)
    values = np.random.default_rng(0).normal(0, 1, (DISTINCT, shape.k)).astype(np.float32)
    quantize_rows(dtype, values, raw.reshape(-1))
    raw = np.tile(raw, (shape.n_expert * shape.m // DISTINCT, 1))
    dims = (shape.k, shape.m, shape.n_expert)
    with Storage(backend, 1) as plain, Storage(backend, 1) as repacked:
        found = {"ggml": plain.add("w", dtype, dims)}
        plain.allocate(0)
        if can_repack(backend, dtype, dims):
            found["ggml repacked"] = repacked.add("w", dtype, dims)
            repacked.allocate_repacked()
        for weight in found.values():
            weight.set_bytes(raw)
        yield shape, found


@pytest.mark.parametrize("kernel", ["ggml", "ggml repacked", "mul_mat_id_small_batch"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_experts(
    benchmark: BenchmarkFixture,
    backend: Backend,
    experts: tuple[Experts, dict[str, Tensor]],
    tokens: int,
    kernel: str,
) -> None:
    shape, weights = experts
    weight = weights.get("ggml" if kernel == "mul_mat_id_small_batch" else kernel)
    if weight is None:
        pytest.skip("this CPU has no repacked layout for the type")
    benchmark.group = f"{weights['ggml'].dtype} {shape.name}, {tokens:3} tokens"
    rng = np.random.default_rng(1)
    values = rng.normal(0, 1, (tokens, 1 if shape.shared else shape.used, shape.k)).astype(np.float32)
    scores = rng.normal(0, 1, (tokens, shape.n_expert)).astype(np.float32)
    product = ops.mul_mat_id_small_batch if kernel == "mul_mat_id_small_batch" else ops.mul_mat_id
    with Context(backend) as ctx:
        x = ctx.input("f32", values.shape[::-1])
        ctx.forward(product(weight, x, ops.top_k(ctx.from_floats(scores), shape.used)))
        ctx.alloc()
        benchmark.pedantic(ctx.compute, setup=lambda: x.set(values), rounds=max(3, 40 // tokens), warmup_rounds=1)
