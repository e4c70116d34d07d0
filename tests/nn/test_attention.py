"""Attention's temperature and soft cap."""

from __future__ import annotations

import numpy as np
import pytest

from ollama_engine import nn
from ollama_engine.errors import ShapeError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context


@pytest.mark.parametrize(("period", "offset"), [(8192, 1), (16384, 0), (12, 1), (25, 1), (41, 0), (1, 0)])
def test_temperature_grows_at_whole_multiples_of_the_period(period: int, offset: int) -> None:
    """Trap: with the reciprocal of a period that is no power of two, a quotient may end just below a whole number."""
    multiples = period * np.arange(1, 200)
    positions = np.unique(np.concatenate([[0], *(multiples + i for i in (-2, -1, 0, 1))]))
    positions = positions[(positions >= 0) & (positions < 2_000_000)].astype(np.int32)
    with Backend(BackendParams(threads=1)) as backend, Context(backend) as ctx:
        factors = nn.temperature(ctx.from_ints(positions), 0.1, period, offset)
        ctx.forward(factors)
        ctx.alloc()
        ctx.compute()
        values = factors.numpy().ravel()
    expected = 1 + 0.1 * np.log1p((positions.astype(np.int64) + offset) // period)
    np.testing.assert_allclose(values, expected, rtol=3e-7)


@pytest.mark.parametrize("cap", [0.001, 30.0, 1e6])
def test_a_soft_cap_bounds_what_is_large_and_leaves_what_is_small(cap: float) -> None:
    values = np.array([-3e7, -2.5, -1e-4, 0, 1e-4, 2.5, 3e7], dtype=np.float32)
    with Backend(BackendParams(threads=1)) as backend, Context(backend) as ctx:
        found = nn.soft_cap(ctx.from_floats(values), cap)
        ctx.forward(found)
        ctx.compute()
        np.testing.assert_allclose(found.numpy(), cap * np.tanh(values.astype(np.float64) / cap), rtol=1e-6)


@pytest.mark.parametrize("cap", [0.0, -30.0, 1e-300, 1e7, float("nan")])
def test_soft_caps_out_of_range(cap: float) -> None:
    with Backend(BackendParams(threads=1)) as backend, Context(backend) as ctx:
        x = ctx.zeros("f32", (4,))
        with pytest.raises(ShapeError, match="soft_cap"):
            nn.soft_cap(x, cap)
