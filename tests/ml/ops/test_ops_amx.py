"""Products and attention with AMX beside numpy in float64. Skipped where the CPU has none, or the system forbids it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import dtypes
from ollama_engine.ml.ops.amx import amx_allowed, amx_attention, amx_product, amx_takes
from tests.plugins.not_run_here import NOT_HERE

needs_amx = pytest.mark.skipif(not amx_allowed(), reason=f"{NOT_HERE}amx")

FLOAT, BFLOAT = 1e-4, 5e-2
"""Tolerances with two parts and with one, in standard deviations of what is expected."""
PARTS = ((2, FLOAT), (1, BFLOAT))


@pytest.fixture(scope="module", params=[1, 3])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with Backend(BackendParams(threads=request.param, gpu_layers=0)) as backend:
        yield backend


def numbers(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def computed(ctx: Context, out: Tensor) -> NDArray[np.float32]:
    ctx.forward(out)
    ctx.alloc()
    ctx.compute()
    return out.numpy().astype(np.float32).reshape(out.shape[::-1])


def difference(found: NDArray[np.float32], expected: NDArray[np.float64]) -> float:
    return float(np.abs(found - expected).max() / max(1.0, expected.std()))


def activated(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    if name == "gelu":
        return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
    return x if name == "none" else np.asarray(x / (1 + np.exp(-1.702 * x)))


@needs_amx
@pytest.mark.parametrize(("k", "m", "n"), [(1, 1, 1), (32, 32, 32), (33, 17, 65), (588, 150, 130), (400, 129, 257)])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_products(k: int, m: int, n: int, dtype: str, backend: Backend) -> None:
    """Sizes that tiles, blocks, and blocks along k divide and do not divide."""
    weight, x, bias = numbers(m, k) / np.float32(np.sqrt(k)), numbers(n, k), numbers(m)
    stored = weight.astype(np.float16) if dtype == "f16" else weight
    plain = x.astype(np.float64) @ stored.astype(np.float64).T
    for parts, tolerance in PARTS:
        for name, added in (("none", None), ("gelu", bias), ("gelu_quick", bias)):
            with Context(backend) as ctx:
                given = None if added is None else ctx.from_floats(added)
                out = amx_product(
                    ctx.from_floats(weight, dtype=dtype), ctx.from_floats(x), given, parts=parts, activation=name
                )
                expected = activated(plain if added is None else plain + added, name)
                assert difference(computed(ctx, out), expected) <= tolerance, (parts, name)


@needs_amx
@pytest.mark.parametrize(
    ("d", "dv", "queries", "keys", "heads"),
    [(72, 72, 300, 300, 3), (32, 32, 32, 32, 1), (8, 5, 3, 3, 2), (64, 64, 33, 1, 1), (12, 12, 36, 700, 4)],
)
def test_attention(d: int, dv: int, queries: int, keys: int, heads: int, backend: Backend) -> None:
    """Heads and keys that tiles divide and do not divide; one key, and more than are read at a time."""
    q, k, v = numbers(queries, heads, d), 3 * numbers(keys, heads, d), numbers(keys, heads, dv)
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) / np.sqrt(d)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), v)
    for parts, tolerance in PARTS:
        with Context(backend) as ctx:
            operands = (ops.permute(ctx.from_floats(t), 0, 2, 1, 3) for t in (q, k, v))
            out = amx_attention(*operands, 1 / np.sqrt(d), parts=parts)
            assert difference(computed(ctx, out), expected) <= tolerance


@needs_amx
def test_nan_stays_nan(backend: Backend) -> None:
    x = numbers(40, 64)
    x[7, 3] = np.nan
    with Context(backend) as ctx:
        found = computed(ctx, amx_product(ctx.from_floats(numbers(20, 64)), ctx.from_floats(x), activation="gelu"))
    assert np.isnan(found).all(axis=1).tolist() == [row == 7 for row in range(40)]


@needs_amx
def test_operands_that_do_not_fit_are_refused(backend: Backend) -> None:
    with Context(backend) as ctx:
        weight, x = ctx.from_floats(numbers(20, 64)), ctx.from_floats(numbers(40, 64))
        short, cube = ctx.from_floats(numbers(40, 63)), ctx.from_floats(numbers(4, 40, 64))
        assert amx_takes(weight)
        assert not amx_takes(cube)
        for faulty in (
            lambda: amx_product(weight, short),
            lambda: amx_product(weight, cube),
            lambda: amx_product(cube, x),
            lambda: amx_product(weight, x, ctx.from_floats(numbers(19))),
            lambda: amx_product(weight, x, parts=3),
            lambda: amx_product(weight, x, activation="silu"),
            lambda: amx_attention(cube, cube, ctx.from_floats(numbers(4, 39, 64))),
            lambda: amx_attention(cube, cube, ctx.from_floats(numbers(3, 40, 64))),
            lambda: amx_attention(*[ctx.from_floats(numbers(1, 2, 257))] * 3),
            lambda: amx_attention(ops.permute(cube, 1, 0, 2, 3), cube, cube),
            lambda: amx_attention(cube, cube, cube, np.nan),
            lambda: amx_attention(cube, cube, cube, 0.0),
            lambda: amx_attention(cube, cube, cube, -1.0),
        ):
            with pytest.raises(ShapeError):
                faulty()


@needs_amx
@pytest.mark.parametrize("dtype", dtypes())
def test_weights_of_every_type_are_read_or_refused(dtype: str, backend: Backend) -> None:
    """ggml has no way from integers and f64 to floats: a file with such a weight ended the process."""
    with Context(backend) as ctx:
        weight, x = ctx.input(dtype, (256, 20), name="weight"), ctx.from_floats(numbers(3, 256))
        if not amx_takes(weight):
            with pytest.raises(ShapeError, match="the weight is a matrix of floats"):
                amx_product(weight, x)
            return
        out = amx_product(weight, x)
        ctx.forward(out)
        ctx.alloc()
        weight.set_bytes(np.zeros(weight.nbytes, np.uint8))
        ctx.compute()
        np.testing.assert_array_equal(out.numpy(), 0)


def test_without_amx_operands_are_refused(backend: Backend) -> None:
    if amx_allowed():
        pytest.skip(f"{NOT_HERE}what CPUs without amx refuse")
    with Context(backend) as ctx:
        x = ctx.from_floats(numbers(40, 64))
        with pytest.raises(ShapeError, match="no AMX"):
            amx_product(x, x)
