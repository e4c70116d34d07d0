"""Every operation against numpy on cases that a reader can follow; test_ops_fuzz.py adds the many."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.config import CacheType
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of, dtypes
from ollama_engine.ml.weights.quantize import dequantize_rows
from tests.ml.ops import reference as ref
from tests.support.suite import slow_except

Compute = Callable[..., NDArray]
RNG = np.random.default_rng(20_260_101)


def normal(*shape: int) -> NDArray[np.float32]:
    """Values in numpy's order."""
    return RNG.normal(0, 1, shape).astype(np.float32)


A = normal(4, 3, 8)
B = normal(4, 3, 8) + 3


def close(actual: NDArray, expected: NDArray, tol: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, np.asarray(expected).reshape(actual.shape), rtol=tol, atol=tol)


# -- element by element ------------------------------------------------------------------------------------------------

ELEMENTWISE: list[tuple[str, Callable[[Tensor, Tensor], Tensor], Callable[[NDArray, NDArray], NDArray], float]] = [
    ("add", lambda a, b: a + b, lambda a, b: a + b, 1e-6),
    ("sub", lambda a, b: a - b, lambda a, b: a - b, 1e-6),
    ("mul", lambda a, b: a * b, lambda a, b: a * b, 1e-6),
    ("div", lambda a, b: a / b, lambda a, b: a / b, 1e-6),
    ("scale", lambda a, _: ops.scale(a, -2.5), lambda a, _: a * -2.5, 1e-6),
    ("scale and shift", lambda a, _: ops.scale(a, 2, 0.5), lambda a, _: a * 2 + 0.5, 1e-6),
    ("clamp", lambda a, _: ops.clamp(a, -0.5, 1), lambda a, _: np.clip(a, -0.5, 1), 0),
    ("clamp below", lambda a, _: ops.clamp(a, -math.inf, 0), lambda a, _: np.minimum(a, 0), 0),
    ("sqr", lambda a, _: ops.sqr(a), lambda a, _: a * a, 1e-6),
    ("sqrt", lambda _, b: ops.sqrt(b), lambda _, b: np.sqrt(b), 1e-6),
    ("log", lambda _, b: ops.log(b), lambda _, b: np.log(b), 1e-6),
    ("sin", lambda a, _: ops.sin(a), lambda a, _: np.sin(a), 1e-6),
    ("cos", lambda a, _: ops.cos(a), lambda a, _: np.cos(a), 1e-6),
    ("rms_norm", lambda a, _: ops.rms_norm(a, 1e-5), lambda a, _: ref.rms_norm(a, 1e-5), 1e-5),
    ("layer_norm", lambda a, _: ops.layer_norm(a, 1e-5), lambda a, _: ref.layer_norm(a, 1e-5), 1e-5),
    ("l2_norm", lambda a, _: ops.l2_norm(a, 1e-5), lambda a, _: ref.l2_norm(a, 1e-5), 1e-5),
    ("norm and weight", lambda a, b: ops.rms_norm(a, 1e-5) * b, lambda a, b: ref.rms_norm(a, 1e-5) * b, 1e-5),
    ("sum_rows", lambda a, _: ops.sum_rows(a), lambda a, _: a.sum(-1), 1e-5),
    ("mean", lambda a, _: ops.mean(a), lambda a, _: a.mean(-1), 1e-5),
    ("gelu_exact", lambda a, _: ops.gelu_exact(a), lambda a, _: ref.ACTIVATIONS["gelu_erf"](a), 1e-6),
    ("gelu_tanh", lambda a, _: ops.gelu_tanh(a), lambda a, _: ref.ACTIVATIONS["gelu"](a), 1e-6),
    ("softmax", lambda a, _: ops.softmax(a), lambda a, _: ref.softmax(ref.four(a)), 1e-5),
    *(
        (name, lambda a, _, n=name: ops.unary(a, n), lambda a, _, n=name: ref.ACTIVATIONS[n](a),
         3e-3 if name in ("gelu", "gelu_quick") else 1e-5)
        for name in ("abs", "neg", "tanh", "relu", "sigmoid", "gelu", "gelu_erf", "gelu_quick", "silu", "exp",
                     "softplus", "floor")
    ),
    *(
        (f"glu {name}", lambda a, b, n=name: ops.glu(a, b, n), lambda a, b, n=name: ref.ACTIVATIONS[n](a) * b,
         1e-2 if name in ("gelu", "gelu_quick") else 1e-5)
        for name in ("silu", "gelu", "gelu_erf", "gelu_quick", "relu")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "tol"), [c[1:] for c in ELEMENTWISE], ids=[c[0] for c in ELEMENTWISE])
def test_elementwise_and_rows(ctx: Context, compute: Compute, op: Any, expected: Any, tol: float) -> None:
    a, b = ctx.input("f32", (8, 3, 4)), ctx.input("f32", (8, 3, 4))
    y = op(a, b)
    ctx.forward(y, a + b)  # both inputs are used
    close(compute(y, (a, A), (b, B)), expected(A.astype(np.float64), B.astype(np.float64)), tol)


@pytest.mark.parametrize("shape", [(8,), (8, 3), (1, 3), (8, 1, 4), (4, 3, 2), (1,)])
def test_the_right_side_is_repeated(ctx: Context, compute: Compute, shape: tuple[int, ...]) -> None:
    small = normal(*shape[::-1])
    out = compute(ctx.from_floats(A) * ctx.from_floats(small))
    close(out, A * ref.fill(ref.four(small), ref.four(A))[0])


def test_glu_reads_rows_of_a_wider_matrix(ctx: Context, compute: Compute) -> None:
    x = normal(3, 10)
    wide = ctx.from_floats(x)
    gate, up = (ops.view(wide, (4, 3), (wide.stride(1),), at * wide.stride(0)) for at in (1, 6))
    close(compute(ops.glu(gate, up)), ref.ACTIVATIONS["silu"](x[:, 1:5]) * x[:, 6:10])


@pytest.mark.parametrize("descending", [False, True])
def test_argsort(ctx: Context, compute: Compute, descending: bool) -> None:
    values = normal(5, 33)
    places = compute(ops.argsort(ctx.from_floats(values), descending))
    expected = np.argsort(-values if descending else values, axis=1)
    np.testing.assert_array_equal(places, expected)


def test_add_id_reads_rows_that_were_computed(ctx: Context, compute: Compute) -> None:
    """Rows of the sum's shape: ggml gave the sum their memory, and added sums to the later rows."""
    a, rows = ctx.from_floats(np.ones((2, 20))), ctx.from_floats(np.full((2, 20), 3.0))
    ids = ctx.from_ints([1, 0], shape=(2, 1))
    found = compute(ops.add_id(ops.reshape(ops.scale(a, 2.0), 20, 2, 1), ops.scale(rows, 1.0), ids))
    np.testing.assert_array_equal(found.reshape(2, 20), 5.0)


def test_best_k(ctx: Context, compute: Compute) -> None:
    values = normal(5, 33)
    best = ops.best_k(ctx.from_floats(values), 4)
    assert best.shape == (4, 5)
    np.testing.assert_array_equal(np.sort(compute(best)), np.sort(np.argsort(-values, axis=1)[:, :4]))


def test_top_k(ctx: Context, compute: Compute) -> None:
    values = normal(5, 33)
    top = ops.top_k(ctx.from_floats(values), 4)
    assert top.shape == (4, 5)
    np.testing.assert_array_equal(compute(ops.cont(top)), np.argsort(-values, axis=1)[:, :4])


# -- shapes ------------------------------------------------------------------------------------------------------------

SHAPES: list[tuple[str, Callable[[Tensor], Tensor], Callable[[NDArray], NDArray]]] = [
    ("permute", lambda t: ops.permute(t, 2, 0, 1, 3), lambda x: x.transpose(2, 0, 1)),
    ("heads first", lambda t: ops.permute(t, 0, 2, 1, 3), lambda x: x.transpose(1, 0, 2)),
    ("transpose", ops.transpose, lambda x: x.transpose(0, 2, 1)),
    ("reshape", lambda t: ops.reshape(t, 24, 4), lambda x: x.reshape(4, 24)),
    ("rows", lambda t: ops.view(t, (8, 2), (32,), 64), lambda x: x.reshape(12, 8)[2:4]),
    ("every other row", lambda t: ops.view(t, (8, 6), (64,)), lambda x: x.reshape(12, 8)[::2]),
    ("a column", lambda t: ops.view(t, (1, 12), (32,), 12), lambda x: x.reshape(12, 8)[:, 3:4]),
    ("windows", lambda t: ops.view(t, (4, 3, 2), (4, 64)), lambda x: np.stack(
        [[x.reshape(-1)[16 * j + i : 16 * j + i + 4] for i in range(3)] for j in range(2)])),
    ("repeat", lambda t: ops.repeat(t, 16, 3, 8), lambda x: np.tile(x, (2, 1, 2))),
    *((f"concat {axis}", lambda t, a=axis: ops.concat(t, t, a), lambda x, a=axis: np.concatenate(
        [x[None]] * 2, 3 - a)) for axis in range(4)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected"), [c[1:] for c in SHAPES], ids=[c[0] for c in SHAPES])
def test_shapes(ctx: Context, compute: Compute, op: Any, expected: Any) -> None:
    y = op(ctx.from_floats(A))
    out = compute(y if y.contiguous else ops.cont(y))
    np.testing.assert_array_equal(out, np.asarray(expected(A)).reshape(out.shape))


CASTS = get_args(CacheType)
STEP = dict.fromkeys(CASTS, 0.4) | {"f32": 0, "f16": 1e-3, "bf16": 1e-2, "q8_0": 0.02, "q5_1": 0.2, "q5_0": 0.2}


def values_of(t: Tensor) -> NDArray:
    raw = t.numpy()
    if t.dtype in ("f32", "f16"):
        return raw
    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[t.dtype.upper()])
    return values.reshape(t.shape[::-1])


@pytest.mark.parametrize("dtype", CASTS)
def test_cast_and_copy(ctx: Context, compute: Compute, dtype: str) -> None:
    x = normal(3, 64)
    source = ctx.from_floats(x)
    cast, target = ops.cast(source, dtype), ctx.zeros(dtype, (64, 3))
    copied = ops.copy(source, target)
    ctx.forward(cast)
    compute(copied)
    np.testing.assert_allclose(values_of(cast), x, atol=STEP[dtype], rtol=STEP[dtype])
    assert cast.numpy().tobytes() == target.numpy().tobytes()


@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("index_type", ["i32", "i64"])
def test_set_rows_into_a_cache(backend: Backend, dtype: str, index_type: str) -> None:
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        cache = storage.add("k", dtype, (64, 10))
        storage.allocate(0)
        rows, index = ctx.input("f32", (64, 3)), ctx.input(index_type, (3,))
        ctx.expand(ops.set_rows(cache, rows, index))
        ctx.alloc()
        expected = np.zeros((10, 64), dtype=np.float32)
        for places in ([7, 0, 9], [0, 3, 8]):
            x = normal(3, 64)
            rows.set(x)
            index.set(np.array(places, dtype=index_type.replace("i", "int")))
            ctx.compute()
            expected[places] = x
            np.testing.assert_allclose(values_of(cache), expected, atol=STEP[dtype], rtol=STEP[dtype])


# -- quantized weights -------------------------------------------------------------------------------------------------

QUANTIZED = [
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq2_xxs", "iq2_xs", "iq3_xxs",
    "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "iq1_m", "tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0",
]  # fmt: skip
ACTIVATIONS = {"q8_1", "q8_K"}
NOT_QUANTIZED = {"f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64"}


def random_weights(dtype: str, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """`rows` rows of 256 random elements as bytes, and the values that are read out of them."""
    block, size = block_of(dtype)
    chosen: list[NDArray] = []
    while len(chosen) < rows * 256 // block:
        raw = RNG.integers(0, 256, (1, size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            values = read_weights(dtype, raw)
        if np.isfinite(values).all() and 1e-3 < np.abs(values).max() < 30:
            chosen.append(raw)
    raw = np.concatenate(chosen).reshape(rows, -1)
    return raw, read_weights(dtype, raw)


def read_weights(dtype: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """As the gguf package reads them; it does not know the newest types yet, which ggml reads itself."""
    if dtype not in ("q1_0", "q2_0"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[dtype.upper()])
    block, size = block_of(dtype)
    values = np.empty((len(raw), raw.shape[1] // size * block), np.float32)
    dequantize_rows(dtype, raw.reshape(-1), values.reshape(-1))
    return values


def test_every_weight_type_is_among_them() -> None:
    assert set(QUANTIZED) == set(dtypes()) - ACTIVATIONS - NOT_QUANTIZED


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("columns", slow_except([1, 5, 24], 5))
def test_products_with_quantized_weights(ctx: Context, compute: Compute, dtype: str, columns: int) -> None:
    raw, weights = random_weights(dtype, 19)
    table = ctx.empty(dtype, (256, 19))
    table.set(raw)
    x = normal(columns, 256)
    out = compute(ops.mul_mat(table, ctx.from_floats(x)))
    sizes = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)[None]
    # The activations are rounded to 8 bits as well.
    assert (np.abs(out - x @ weights.T) <= 0.02 * sizes + 1e-4).all()


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_rows_of_quantized_tables(ctx: Context, compute: Compute, dtype: str) -> None:
    raw, values = random_weights(dtype, 6)
    table = ctx.empty(dtype, (256, 6))
    table.set(raw)
    out = compute(ops.get_rows(table, ctx.from_ints([5, 0, 5, 2])))
    np.testing.assert_allclose(out, values[[5, 0, 5, 2]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tol"), [("f32", 1e-4), ("f16", 2e-2), ("q8_0", 0.3)])
def test_experts(ctx: Context, compute: Compute, dtype: str, tol: float) -> None:
    x, w = normal(5, 1, 64), normal(4, 6, 64)
    ids = RNG.permuted(np.tile(np.arange(4), (5, 1)), axis=1)[:, :2].astype(np.int32)
    experts = ctx.empty(dtype, (64, 6, 4))
    raw = w if dtype == "f32" else gguf.quants.quantize(w, gguf.GGMLQuantizationType[dtype.upper()])
    experts.set_bytes(np.ascontiguousarray(raw))
    out = compute(ops.mul_mat_id(experts, ctx.from_floats(x), ctx.from_ints(ids)))
    close(out, ref.mul_mat_id(w[None], x[None], ids[None, None])[0], tol)


# -- positions and attention -------------------------------------------------------------------------------------------

YARN = {
    "freq_scale": 0.25,
    "n_ctx_orig": 64,
    "ext_factor": 1.0,
    "attn_factor": 0.9,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
FACTORS = np.linspace(1, 8, 16).astype(np.float32)
ROPES: list[tuple[str, int, dict[str, Any], NDArray | None]] = [
    ("plain", 32, {}, None),
    ("half of the head", 16, {}, None),
    ("another base", 32, {"freq_base": 5e5}, None),
    ("linear scaling", 32, {"freq_scale": 0.5}, None),
    ("factors", 32, {}, FACTORS),
    ("as many factors as turn", 16, {}, FACTORS[:8]),
    ("yarn", 32, YARN, None),
    ("yarn and factors", 32, YARN, FACTORS),
]


@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize(("n_dims", "options", "factors"), [c[1:] for c in ROPES], ids=[c[0] for c in ROPES])
def test_rope(
    ctx: Context, compute: Compute, mode: str, n_dims: int, options: dict[str, Any], factors: NDArray | None
) -> None:
    x, positions = normal(6, 3, 32), np.array([0, 1, 2, 77, 300, 1000], dtype=np.int32)
    divide = None if factors is None else ctx.from_floats(factors)
    y = ops.rope(ctx.from_floats(x), ctx.from_ints(positions), n_dims, mode=mode, factors=divide, **options)
    expected = ref.rope(ref.four(x).astype(np.float64), positions, n_dims, mode=mode, factors=factors, **options)
    close(compute(y), expected, 5e-3)


@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("queries", slow_except([1, 7, 70], 7))
@pytest.mark.parametrize("options", [{}, {"softcap": 20.0}, {"sinks": True}], ids=str)
def test_flash_attention_is_softmax_in_one_pass(
    ctx: Context, compute: Compute, dtype: str, queries: int, options: dict[str, Any]
) -> None:
    """The same from the engine's own products and softmax, for two key heads that serve four query heads."""
    heads, shared, d, keys = 4, 2, 64, 96
    q, k, v = normal(heads, queries, d), normal(shared, keys, d), normal(shared, keys, d)
    mask = np.where(RNG.random((queries, keys)) < 0.3, -np.inf, 0).astype(np.float16)
    mask[:, 0] = 0
    sinks = ctx.from_floats(normal(heads)) if options.get("sinks") else None
    asked, limits = ctx.from_floats(q), ctx.from_floats(mask, dtype="f16")
    known = [ops.cast(ctx.from_floats(x), dtype) for x in (k, v)]
    scale = 1 / math.sqrt(d)
    fast = ops.flash_attention(asked, *known, limits, scale, softcap=options.get("softcap", 0.0), sinks=sinks)
    assert fast.shape == (d, heads, queries) if queries > 1 else (d, heads)
    ctx.forward(fast)
    if "softcap" in options:
        scores = ops.scale(ops.unary(ops.scale(ops.mul_mat(ctx.from_floats(k), asked), scale / 20), "tanh"), 20)
        weights = ops.softmax(scores, limits)
    else:
        weights = ops.softmax(ops.mul_mat(ctx.from_floats(k), asked), limits, scale, sinks)
    turned = ops.cont(ops.transpose(ctx.from_floats(v)))
    slow = ops.cont(ops.permute(ops.mul_mat(turned, weights), 0, 2, 1, 3))
    expected = compute(slow)
    close(fast.numpy(), expected, {"f32": 1e-4, "f16": 5e-3, "bf16": 3e-2, "q8_0": 3e-2}.get(dtype, 0.25))
