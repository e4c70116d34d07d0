"""mul_mat_small_batch of F16 weights as whole numbers: against numpy, against ggml's product, and bit by bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_VARIANTS
from tests.ml.ops.small_batch_weights import (
    Bytes,
    Floats,
    every_set,
    kernels,
    raw_weights,
    values_of,
    whole_activations,
    whole_weights,
)
from tests.support.instruction_sets import FLOAT_PRODUCTS, RecordProperty
from tests.support.suite import slow_except

RNG = np.random.default_rng(20_261_126)
WHOLE = kernels([("f16", name) for name in FLOAT_PRODUCTS])


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=2), max_nodes=64) as made:
        yield made


def product(backend: Backend, raw: Bytes, x: Floats, name: str | None, *, variant: str = "spread",
            by_ggml: bool = False) -> Floats:  # fmt: skip
    """The result as whole numbers, or of ggml's mul_mat on the weights as they are."""
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", "f16", (x.shape[1], len(raw)))
        storage.allocate(0)
        weight.set_bytes(raw)
        b = ctx.from_floats(x)
        y = ops.mul_mat(weight, b) if by_ggml else ops.mul_mat_small_batch(weight, b, name, variant, whole=True)
        ctx.forward(y)
        ctx.compute()
        out: Floats = y.numpy()
        return out.reshape(len(x), len(raw))


@pytest.mark.parametrize(("dtype", "name"), WHOLE)
@pytest.mark.parametrize(("k", "m"), [(16, 16), (80, 17), (1040, 48)])
def test_against_numpy(backend: Backend, dtype: str, name: str, k: int, m: int) -> None:
    raw, x = raw_weights(dtype, m, k), RNG.normal(0, 3, (5, k)).astype(np.float32)
    weights, acts = whole_weights(raw), whole_activations(x)
    sizes = np.abs(acts) @ np.abs(weights).T
    assert (np.abs(product(backend, raw, x, name) - acts @ weights.T) <= 2e-6 * sizes + 1e-6).all()


@pytest.mark.parametrize(
    ("rows", "blocks"), slow_except([(9, 3), (20, 1), (21, 3), (48, 5), (300, 4), (65, 40)], (9, 3), (21, 3))
)
def test_rows_have_the_same_bits(backend: Backend, rows: int, blocks: int, record_property: RecordProperty) -> None:
    """Alone and together, with all instructions, however weights are fetched."""
    raw, x = raw_weights("f16", 53, 80 * blocks), RNG.normal(0, 1, (rows, 80 * blocks)).astype(np.float32)
    x[0], x[-1] = 1.0, -1.0
    expected = np.concatenate([product(backend, raw, row, "scalar") for row in np.array_split(x, rows)])
    for name in every_set("f16", record_property):
        for variant in SMALL_BATCH_VARIANTS:
            assert product(backend, raw, x, name, variant=variant).tobytes() == expected.tobytes(), (name, variant)


@pytest.mark.parametrize(("dtype", "name"), WHOLE)
@pytest.mark.parametrize("rows", [1, 5])
def test_every_16_bits(backend: Backend, dtype: str, name: str, rows: int) -> None:
    """Each pattern of bits as the only weight that counts. NaN and infinity give NaN."""
    raw = np.zeros((1 << 16, 16), np.uint16)
    raw[:, 5] = np.arange(1 << 16, dtype=np.uint16)
    x = np.zeros((rows, 16), np.float32)
    x[:, 5] = 1
    with np.errstate(invalid="ignore"):  # ARM's conversion says that a signalling NaN becomes a quiet one
        expected = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    expected[~np.isfinite(expected)] = np.nan
    ours = product(backend, raw.view(np.uint8), x, name)
    np.testing.assert_allclose(ours, np.tile(expected, (rows, 1)), rtol=2e-7, atol=0)


def test_other_weights_are_refused(backend: Backend) -> None:
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", "q4_0", (32, 16))
        storage.allocate(0)
        with pytest.raises(ShapeError, match="the weight must be"):
            ops.mul_mat_small_batch(weight, ctx.from_floats(np.ones((1, 32), np.float32)), whole=True)


def _channels(by: float) -> tuple[Floats, Floats]:
    """Activations and weights of normal distribution, but for two activations in each row."""
    x, weights = RNG.normal(0, 1, (8, 2048)), RNG.normal(0, 0.02, (256, 2048))
    x[:, [77, 1500]] *= by
    return x.astype(np.float32), weights.astype(np.float32)


def _tails() -> tuple[Floats, Floats]:
    x, weights = _channels(1)
    return (x * np.exp(RNG.normal(0, 1.5, x.shape))).astype(np.float32), (weights * np.abs(weights) * 50).astype("f4")


@pytest.mark.parametrize(
    ("x", "weights"),
    [_channels(1), _channels(100), _channels(1000), _tails()],
    ids=["normal", "two channels of 100", "two channels of 1000", "tails"],
)
def test_it_is_nearer_to_the_exact_product_than_ggml(backend: Backend, x: Floats, weights: Floats) -> None:
    """ggml rounds activations to F16."""
    raw = weights.astype(np.float16).view(np.uint8)
    exact = x.astype(np.float64) @ values_of("f16", raw).T
    ours, ggml = (product(backend, raw, x, None, by_ggml=by_ggml) for by_ggml in (False, True))
    errors = [float(np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2))) for y in (ours, ggml)]
    assert errors[0] < 0.9 * errors[1], errors


@pytest.mark.parametrize(("dtype", "name"), WHOLE)
@pytest.mark.parametrize("bits", [0x3FFF, 0x7BFF, 0x03FF])
def test_largest_sums_do_not_overflow(backend: Backend, dtype: str, name: str, bits: int) -> None:
    """All weights of the most bits, activations of one size but one of 64, in both signs."""
    raw = np.full((16, 192), bits, np.uint16).view(np.uint8)
    x = np.ones((256, 192), np.float32)
    x[:, ::64] = np.linspace(0.5, 2, 256)[:, None]
    x[:4:2, ::64], x[4:8, ::32] = 16, 0
    x[1::2] *= -1
    exact = x.astype(np.float64) @ values_of(dtype, raw).T
    assert (np.abs(product(backend, raw, x, name) - exact) <= 2.5e-4 * np.abs(exact)).all()
