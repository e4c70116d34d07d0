"""weighted_sum: against ggml's operations, bit by bit, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.ops.operands import on_cpu_alone
from ollama_engine.nn.moe import sum_slots

RNG = np.random.default_rng(20_261_121)


@pytest.mark.parametrize("m", [1, 31, 256, 700])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (1, 4), (8, 1), (3, 5), (8, 64)])
def test_the_bits_of_ggml(backend: Backend, m: int, rows: int, n: int) -> None:
    x, w = RNG.normal(0, 1, (n, rows, m)).astype(np.float32), RNG.random((n, rows, 1)).astype(np.float32)
    with Context(backend) as ctx:
        a, b = ctx.from_floats(x), ctx.from_floats(w)
        ours, theirs = ops.weighted_sum(a, b), sum_slots(a * b)
        assert ours.shape == theirs.shape
        ctx.forward(ours, theirs)
        ctx.compute()
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
        np.testing.assert_allclose(ours.numpy().reshape(n, m), (x.astype(np.float64) * w).sum(1), atol=1e-5)


def test_windows(backend: Backend) -> None:
    x, w = RNG.normal(0, 1, (3, 4, 50)).astype(np.float32), RNG.random((3, 6, 1)).astype(np.float32)
    with Context(backend) as ctx:
        a = ops.view(ctx.from_floats(x), (40, 2, 3), (400, 800), 8)
        b = ops.view(ctx.from_floats(w), (1, 2, 3), (12, 24), 0)
        y = ops.weighted_sum(a, b)
        ctx.forward(y)
        ctx.compute()
        np.testing.assert_allclose(y.numpy(), (x[:, ::2, 2:42] * w[:, [0, 3]]).sum(1), atol=1e-6)


def test_where_it_is_chosen(backend: Backend, ctx: Context) -> None:
    assert on_cpu_alone(ctx.input("f32", (4, 2, 1))) == (len(backend.devices) == 1)


REFUSALS: list[tuple[str, Any, str]] = [
    ("other rows", lambda c: ops.weighted_sum(c.zeros("f32", (4, 3, 2)), c.zeros("f32", (1, 2, 2))), "takes weights"),
    ("other number", lambda c: ops.weighted_sum(c.zeros("f32", (4, 3, 2)), c.zeros("f32", (1, 3, 1))), "takes weights"),
    ("one for all", lambda c: ops.weighted_sum(c.zeros("f32", (4, 3, 2)), c.zeros("f32", (4, 3, 2))), "takes weights"),
    ("4D", lambda c: ops.weighted_sum(c.zeros("f32", (4, 3, 2, 2)), c.zeros("f32", (1, 3, 2))), "takes weights"),
    ("f16", lambda c: ops.weighted_sum(c.zeros("f16", (4, 3)), c.zeros("f32", (1, 3))), "expected f32"),
    ("weights of f16", lambda c: ops.weighted_sum(c.zeros("f32", (4, 3)), c.zeros("f16", (1, 3))), "expected f32"),
    ("turned", lambda c: ops.weighted_sum(ops.transpose(c.zeros("f32", (3, 4))), c.zeros("f32", (1, 3))),
     "contiguous rows"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "message"), [c[1:] for c in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_refusals(ctx: Context, attempt: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        attempt(ctx)
