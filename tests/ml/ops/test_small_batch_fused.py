"""Products of a norm or of a gated unit: computed on the way, they are what their own operations give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from tests.ml.ops.small_batch_weights import TYPES, Bytes, Floats, every_set, raw_weights, values_of
from tests.support.instruction_sets import RecordProperty
from tests.support.suite import scaled, slow_except

RNG = np.random.default_rng(20_261_122)
EPS = 1e-5
IN_BLOCKS_OF_32 = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4")
Before = Callable[[Tensor, Tensor], Tensor]


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    return ops.glu(a, b)


def norm(a: Tensor, b: Tensor) -> Tensor:
    """Of a, with b's first row as the weight."""
    return ops.rms_norm(a, EPS) * ops.view(b, (b.dim(0),), (), 0)


def expected(before: Before, a: Floats, b: Floats) -> Floats:
    """In float64."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    if before is swiglu:
        return np.asarray(x * np.exp(-np.logaddexp(0, -x)) * y)
    return np.asarray(x / np.sqrt((x**2).mean(1, keepdims=True) + EPS) * y[:1])


def product(backend: Backend, dtype: str, raw: Bytes, before: Before, operands: tuple[Floats, Floats],
            name: str | None = None) -> Floats:  # fmt: skip
    rows, k = operands[0].shape
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", dtype, (k, len(raw)))
        storage.allocate(0)
        weight.set_bytes(raw)
        a, b = (ctx.from_floats(values) for values in operands)
        y = ops.mul_mat_small_batch(weight, before(a, b), name)
        ctx.forward(y)
        assert ctx.n_nodes == (2 if before is swiglu else 3)  # the view of the norm's weight is a node
        ctx.compute()
        return np.asarray(y.numpy()).reshape(rows, len(raw))


def two(rows: int, k: int, size: float = 1.0) -> tuple[Floats, Floats]:
    return tuple(RNG.normal(0, size, (rows, k)).astype(np.float32) for _ in range(2))


@pytest.mark.parametrize("before", [swiglu, norm])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", slow_except([1e-6, 1.0, 30.0], 1.0))
def test_against_numpy(backend: Backend, dtype: str, before: Before, size: float) -> None:
    if dtype in IN_BLOCKS_OF_32:  # their activations' factor is an f16, as ggml's: at least 6e-8
        size = max(size, 0.1)
    raw = raw_weights(dtype, 20, 768)
    operands = two(5, 768, size)
    x, weights = expected(before, *operands), values_of(dtype, raw)
    sizes = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)[None]
    # Of the activations, quantizing leaves 8 bits of the largest in a block.
    tolerance = {"f16": 1e-5, "bf16": 2e-3}.get(dtype, 2e-2)
    assert (np.abs(product(backend, dtype, raw, before, operands) - x @ weights.T) <= tolerance * sizes).all()


@pytest.mark.parametrize("before", [swiglu, norm])
@pytest.mark.parametrize("dtype", slow_except(TYPES, "q4_K", "q4_0", "f16"))
def test_every_instruction_set_and_number_of_rows_gives_the_same_bits(
    backend: Backend, dtype: str, before: Before, record_property: RecordProperty
) -> None:
    raw = raw_weights(dtype, 53, 1280)
    operands = two(33, 1280)
    scalar = product(backend, dtype, raw, before, operands, "scalar")
    for name in every_set(dtype, record_property):
        for rows in scaled((1, 2, 5, 20, 21, 33), quick=(1, 3, 33)):
            some = (operands[0][:rows], operands[1][:rows])
            assert product(backend, dtype, raw, before, some, name).tobytes() == scalar[:rows].tobytes(), (name, rows)


@pytest.mark.parametrize("before", [swiglu, norm])
def test_extreme_numbers(backend: Backend, before: Before) -> None:
    """Numbers of every size, to the bits of plain C; no NaN out of numbers, and NaN and infinity in their row only."""
    raw = raw_weights("f16", 20, 512)
    a, b = two(6, 512)
    a[0] *= 1e4
    a[1] = np.linspace(-200, 200, 512)
    a[2] *= 1e-30
    a[3, 7], a[4, 9] = np.nan, np.inf
    found = product(backend, "f16", raw, before, (a, b))
    assert np.isfinite(found[[0, 1, 2, 5]]).all()
    assert not np.isfinite(found[[3, 4]]).any()
    clean = product(backend, "f16", raw, before, (a[5:], np.vstack([b[:1] if before is norm else b[5:]])))
    assert found[5:].tobytes() == clean.tobytes()
    scalar = product(backend, "f16", raw, before, (a, b), "scalar")
    assert found[[0, 1, 2, 5]].tobytes() == scalar[[0, 1, 2, 5]].tobytes()


def test_what_others_read_is_computed_too(backend: Backend) -> None:
    raw, (a, b) = raw_weights("q4_0", 20, 256), two(3, 256)
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", "q4_0", (256, 20))
        storage.allocate(0)
        weight.set_bytes(raw)
        gated = swiglu(ctx.from_floats(a), ctx.from_floats(b))
        y = ops.mul_mat_small_batch(weight, gated)
        ctx.forward(y, gated)
        ctx.compute()
        np.testing.assert_allclose(gated.numpy(), expected(swiglu, a, b), rtol=1e-5, atol=1e-6)
        assert y.numpy().tobytes() == product(backend, "q4_0", raw, swiglu, (a, b)).tobytes()


@pytest.mark.parametrize("before", [swiglu, norm])
def test_what_is_written_into_is_read_when_it_is(backend: Backend, before: Before) -> None:
    """A result that something else is copied over is multiplied as it is then."""
    raw, (a, b), (other, _) = raw_weights("f16", 20, 256), two(3, 256), two(3, 256)
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", "f16", (256, 20))
        storage.allocate(0)
        weight.set_bytes(raw)
        x = before(ctx.from_floats(a), ctx.from_floats(b))
        ctx.forward(x)
        ctx.forward(ops.copy(ctx.from_floats(other), x))
        y = ops.mul_mat_small_batch(weight, x)
        ctx.forward(y)
        ctx.compute()
        np.testing.assert_allclose(y.numpy(), other.astype(np.float64) @ values_of("f16", raw).T, rtol=1e-4, atol=1e-3)
