"""Soft caps and the tanh form of GELU: how exact, and the same bits on every CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context

CAPS = (0.001, 1.0, 30.0, 50.0, 1e6)
LN2 = (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33"))


def soft_cap(x: NDArray[np.float32], cap: float, threads: int = 1) -> NDArray[np.float32]:
    with Backend(BackendParams(threads=threads)) as backend, Context(backend) as ctx:
        y = ops.soft_cap(ctx.from_floats(x), cap)
        ctx.forward(y)
        ctx.compute()
        return y.numpy()


def twin(x: NDArray[np.float32], cap: float) -> NDArray[np.float32]:
    """The kernel's operations in its order. numpy rounds each of them, as the kernel must on every CPU."""
    limit = float(np.float32(cap))
    z = x.astype(np.float64) / limit
    size = np.minimum(np.abs(z), 20.0)
    shifted = (-2.0 * size) * 1.4426950408889634 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    r = (-2.0 * size - n * LN2[0]) - n * LN2[1]
    p = np.full_like(r, 1.0 / 3628800.0)
    for k in range(9, -1, -1):
        p = p * r + 1.0 / math.factorial(k)
    e = p * np.ldexp(1.0, n.astype(np.int64))
    near = size - size * size * size * (1.0 / 3.0)
    tanh = np.where(size < 1e-3, near, (1.0 - e) / (1.0 + e))
    return (limit * np.copysign(tanh, z)).astype(np.float32)


def spread(cap: float, count: int) -> NDArray[np.float32]:
    """Numbers of both signs and all sizes, most of them where the cap bends."""
    rng = np.random.default_rng(7)
    sizes = np.concatenate([10.0 ** rng.uniform(-30, 9, count // 3), rng.uniform(0, 12 * cap, count - count // 3)])
    return (sizes * rng.choice((-1, 1), count)).astype(np.float32)


@pytest.mark.parametrize("cap", CAPS)
def test_a_soft_cap_is_rounded_once(cap: float) -> None:
    x = spread(cap, 100_000)
    y, limit = soft_cap(x, cap), float(np.float32(cap))
    exact = limit * np.tanh(x.astype(np.float64) / limit)
    np.testing.assert_array_less(np.abs(y - exact), 0.501 * np.spacing(np.abs(exact).astype(np.float32)) + 1e-45)
    assert np.abs(y).max() == np.float32(cap)


@pytest.mark.parametrize("cap", CAPS)
def test_it_has_the_bits_of_its_twin(cap: float) -> None:
    x = spread(cap, 30_011)  # no multiple of any vector
    np.testing.assert_array_equal(soft_cap(x, cap).view(np.uint32), twin(x, cap).view(np.uint32))


@pytest.mark.parametrize("cap", CAPS)
def test_it_is_monotone(cap: float) -> None:
    """Neighbouring floats around the places where the exponential goes on to the next power of two, and near 0."""
    joints = [cap * k * math.log(2) / 4 for k in range(1, 60, 2)] + [1e-3 * cap]
    bits = np.array(joints, dtype=np.float32).view(np.int32)[:, None] + np.arange(-2000, 2000, dtype=np.int32)
    for x in (bits.view(np.float32).ravel(), np.abs(spread(cap, 100_000))):
        y = soft_cap(np.sort(x), cap)
        assert (np.diff(y) >= 0).all()


def test_what_is_no_number_and_signs_of_zero() -> None:
    y = soft_cap(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45], dtype=np.float32), 30.0)
    assert np.isnan(y[0])
    np.testing.assert_array_equal(y[1:], np.array([30, -30, 0, 0, 1e-45], dtype=np.float32))
    np.testing.assert_array_equal(np.signbit(y[3:5]), [False, True])


def test_threads_share_it() -> None:
    x = spread(30.0, 30_011)
    np.testing.assert_array_equal(soft_cap(x, 30.0, threads=2), soft_cap(x, 30.0))


@pytest.mark.parametrize("cap", [0.0, -30.0, 1e-300, 1e7, float("nan")])
def test_soft_caps_out_of_range(cap: float) -> None:
    with Backend(BackendParams(threads=1)) as backend, Context(backend) as ctx:
        x = ctx.zeros("f32", (4,))
        with pytest.raises(ShapeError, match="soft_cap"):
            ops.soft_cap(x, cap)


def test_gelu_is_exact_and_any_share_of_it_has_the_same_bits() -> None:
    """Far from 0 it is x or 0, though the cube of a large number is none; numbers are shared among threads."""
    x = np.concatenate([spread(1.0, 50_000), np.linspace(-30, 30, 20_011)]).astype(np.float32)
    found = [_gelu(x, threads) for threads in (1, 3)]
    np.testing.assert_array_equal(found[0].view(np.uint32), found[1].view(np.uint32))
    z = np.clip(x.astype(np.float64), -1e4, None)
    slope = np.clip(np.sqrt(8 / np.pi) * (z + 0.044715 * z**3), -700, 700)
    assert (np.abs(found[0] - x / (1 + np.exp(-slope))) / np.maximum(1, np.abs(x))).max() < 1e-6
    assert np.isnan(_gelu(np.array([np.nan], np.float32), 1)).all()


def _gelu(x: NDArray[np.float32], threads: int) -> NDArray[np.float32]:
    with Backend(BackendParams(threads=threads)) as backend, Context(backend) as ctx:
        y = ops.gelu_tanh(ctx.from_floats(x))
        ctx.forward(y)
        ctx.compute()
        return y.numpy()
