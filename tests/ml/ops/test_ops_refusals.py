"""What operations refuse, in words; and layouts that ggml itself would abort on, or read past."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

Call = Callable[[Context], object]


def f32(c: Context, *shape: int) -> Tensor:
    return c.zeros("f32", shape or (8, 3))


def i32(c: Context, *shape: int) -> Tensor:
    return c.zeros("i32", shape)


def copy_onto_itself(c: Context) -> Tensor:
    t = f32(c)
    return ops.copy(ops.view(t, (8,)), ops.view(t, (8,), None, 16))


def set_own_rows(c: Context) -> Tensor:
    t = f32(c)
    return ops.set_rows(t, ops.view(t, (8, 1)), i32(c, 1))


REFUSALS: list[tuple[str, Call, str]] = [
    ("f16 operands", lambda c: f32(c) + c.zeros("f16", (8, 3)), "both sides must be f32"),
    ("a larger right side", lambda c: f32(c, 4) + f32(c, 8), "must divide"),
    ("no factor", lambda c: f32(c, 8) * f32(c, 3), "must divide"),
    ("strided rows", lambda c: ops.transpose(f32(c)) + f32(c, 3, 8), "rows must be contiguous"),
    ("unknown activation", lambda c: ops.unary(f32(c), "swish"), "unknown activation 'swish'; known: abs"),
    ("integers", lambda c: ops.sqr(i32(c, 4)), "expected f32, got i32"),
    ("strided", lambda c: ops.sqr(ops.transpose(f32(c))), "must be contiguous"),
    ("other shapes", lambda c: ops.glu(f32(c, 8), f32(c, 4)), "both sides need one shape"),
    ("unknown gate", lambda c: ops.glu(f32(c), f32(c), "swish"), "unknown gated activation"),
    ("nan", lambda c: ops.scale(f32(c), math.nan), "factor must be a finite number, got nan"),
    ("too large for a float", lambda c: ops.scale(f32(c), 1, 1e39), "bias must be a finite number"),
    ("bounds crossed", lambda c: ops.clamp(f32(c), 1, 0), "low must not exceed high"),
    ("nan bound", lambda c: ops.clamp(f32(c), math.nan, 0), "low must be a finite number, got nan"),
    ("a bound too large", lambda c: ops.clamp(f32(c), 0, 1e39), "high must be a finite number"),
    ("negative eps", lambda c: ops.rms_norm(f32(c), -1e-5), "eps must not be negative"),
    ("infinite eps", lambda c: ops.layer_norm(f32(c), math.inf), "eps must be a finite number"),
    ("strided row", lambda c: ops.l2_norm(ops.transpose(f32(c)), 0.1), "rows of f32\\[3, 8\\] must be contiguous"),
    ("k of 0", lambda c: ops.top_k(f32(c), 0), "k is 1 to 8"),
    ("k too large", lambda c: ops.top_k(f32(c), 9), "k is 1 to 8"),
    ("no best", lambda c: ops.best_k(f32(c), 0), "k is 1 to the row's length, 8"),
    ("more best than there are", lambda c: ops.best_k(f32(c), 9), "k is 1 to the row's length, 8"),
    ("a view too long", lambda c: ops.view(f32(c), (25,)), "needs 100 bytes, but f32\\[8, 3\\] has 96"),
    ("a view beyond", lambda c: ops.view(f32(c), (8,), None, 68), "needs 100 bytes"),
    ("rows beyond", lambda c: ops.view(f32(c), (8, 2), (68,)), "needs 100 bytes"),
    ("overlap without end", lambda c: ops.view(f32(c), (8, 17), (4,)), "needs 544 bytes"),
    ("huge strides", lambda c: ops.view(f32(c), (1, 2), (1 << 47,)), "bytes, but"),
    ("a reach of 2**64 bytes", lambda c: ops.view(f32(c), (1, 131073), (1 << 47,)), "needs 18446744073709551620 bytes"),
    ("absurd strides", lambda c: ops.view(f32(c), (1, 2), (1 << 60,)), "sane range"),
    ("negative stride", lambda c: ops.view(f32(c), (1, 2), (-4,)), "sane range"),
    ("negative offset", lambda c: ops.view(f32(c), (1,), None, -4), "sane range"),
    ("odd offset", lambda c: ops.view(f32(c), (1,), None, 2), "multiples of 4 bytes"),
    ("odd stride", lambda c: ops.view(f32(c), (1, 2), (6,)), "multiples of 4 bytes"),
    ("strides missing", lambda c: ops.view(f32(c), (1, 2), ()), "needs 1 strides"),
    ("view of a view turned", lambda c: ops.view(ops.transpose(f32(c)), (3,)), "not contiguous"),
    ("blocks cut", lambda c: ops.view(c.zeros("q8_0", (64, 2)), (16,)), "blocks of 32"),
    ("other size", lambda c: ops.reshape(f32(c), 5, 5), "24 elements, not those"),
    ("reshape turned", lambda c: ops.reshape(ops.transpose(f32(c)), 24), "must be contiguous"),
    ("axes twice", lambda c: ops.permute(f32(c), 0, 0, 1, 2), "in some order"),
    ("blocks moved", lambda c: ops.transpose(c.zeros("q4_0", (32, 2))), "made of blocks and cannot move"),
    ("rows of blocks", lambda c: ops.cont(c.zeros("q4_0", (32, 2))), "expected f32, f16, bf16 or i32"),
    ("cast from blocks", lambda c: ops.cast(c.zeros("q4_0", (32,)), "f32"), "expected f32, f16 or bf16"),
    ("cast to k-quants", lambda c: ops.cast(f32(c, 256), "q4_K"), "the result is f32"),
    ("cast turned", lambda c: ops.cast(ops.transpose(f32(c, 32, 32)), "q8_0"), "only contiguous f32"),
    ("cast in half blocks", lambda c: ops.cast(f32(c, 48), "q8_0"), "no multiple of 32"),
    ("copy of other size", lambda c: ops.copy(f32(c), f32(c, 8)), "different numbers of elements"),
    ("copy of other rows to blocks", lambda c: ops.copy(f32(c, 256, 1), c.zeros("q8_0", (32, 8))), "must be equal"),
    ("copy onto itself", copy_onto_itself, "share memory"),
    ("concat of types", lambda c: ops.concat(f32(c), c.zeros("f16", (8, 3)), 0), "f32, f16 or i32 alike"),
    ("concat of shapes", lambda c: ops.concat(f32(c, 8, 3), f32(c, 4, 3), 1), "differ in dimension 0"),
    ("concat axis", lambda c: ops.concat(f32(c), f32(c), 4), "axis is 0 to 3"),
    ("no multiple", lambda c: ops.repeat(f32(c), 8, 4), "no multiple of f32\\[8, 3\\] in dimension 1"),
    ("rows of i8", lambda c: ops.get_rows(c.zeros("i8", (8, 3)), i32(c, 2)), "cannot be read"),
    ("rows of q8_K", lambda c: ops.get_rows(c.zeros("q8_K", (256, 3)), i32(c, 2)), "intermediate type"),
    ("index of floats", lambda c: ops.get_rows(f32(c), f32(c, 2)), "index must be i32 with contiguous rows"),
    ("lists for one table", lambda c: ops.get_rows(f32(c), i32(c, 2, 2)), "does not fit"),
    ("rows of f16", lambda c: ops.set_rows(f32(c), c.zeros("f16", (8, 1)), i32(c, 1)), "values must be f32"),
    ("into k-quants", lambda c: ops.set_rows(c.zeros("q4_K", (256, 2)), f32(c, 256, 1), i32(c, 1)), "table is f32"),
    ("other rows", lambda c: ops.set_rows(f32(c), f32(c, 4, 1), i32(c, 1)), "do not fit"),
    ("too few places", lambda c: ops.set_rows(f32(c), f32(c, 8, 2), i32(c, 1)), "index i32\\[1\\] does not fit"),
    ("rows of the table", set_own_rows, "share memory"),
    ("other length", lambda c: ops.mul_mat(f32(c, 8, 3), f32(c, 4, 3)), "do not fit"),
    ("turned weight", lambda c: ops.mul_mat(ops.transpose(f32(c)), f32(c, 3, 2)), "not be transposed"),
    ("f16 values", lambda c: ops.mul_mat(f32(c), c.zeros("f16", (8, 2))), "right side must be f32"),
    ("integer weights", lambda c: ops.mul_mat(i32(c, 8, 3), f32(c)), "cannot be multiplied with"),
    ("a product of 2**60", lambda c: ops.mul_mat(*(c.input("f32", (1, 1 << 30)),) * 2), "2\\*\\*40"),
    ("too many experts", lambda c: ops.mul_mat_id(f32(c, 8, 2, 2), f32(c, 8, 1, 1), i32(c, 3, 1)), "there are 2"),
    ("routes beyond count", lambda c: ops.mul_mat_id(
        c.input("f32", (1, 1, 1 << 20)), c.input("f32", (1, 1, 1 << 20)), c.input("i32", (1, 1 << 20))), "more than"),
    ("experts in 4D", lambda c: ops.mul_mat_id(f32(c, 8, 2, 2, 2), f32(c, 8), i32(c, 1)), "up to 3 dimensions"),
    ("ids of other rows", lambda c: ops.add_id(f32(c, 8, 2, 3), f32(c, 8, 4), i32(c, 2, 2)), "add_id: .* takes rows"),
    ("biases in f16", lambda c: ops.add_id(f32(c, 8, 1, 1), c.zeros("f16", (8, 4)), i32(c, 1)), "both sides are f32"),
    ("a limit below 0", lambda c: ops.clamped_swiglu(f32(c), f32(c), 1, -1), "must not be negative"),
    ("odd n_dims", lambda c: ops.rope(f32(c, 8, 1, 2), i32(c, 2), 3), "n_dims is even"),
    ("n_dims too large", lambda c: ops.rope(f32(c, 8, 1, 2), i32(c, 2), 10), "n_dims is even and 2 to 8"),
    ("odd head", lambda c: ops.rope(f32(c, 7, 1, 2), i32(c, 2), 2), "an even head size"),
    ("positions missing", lambda c: ops.rope(f32(c, 8, 1, 2), i32(c, 3), 8), "takes i32 positions \\[2\\]"),
    ("factors missing", lambda c: ops.rope(f32(c, 8, 1, 2), i32(c, 2), 8, factors=f32(c, 3)), "are f32 \\[4\\]"),
    ("unknown mode", lambda c: ops.rope(f32(c, 8, 1, 2), i32(c, 2), 8, mode="vision"), "mode is norm or neox"),
    ("base of 1", lambda c: ops.rope(f32(c, 8, 1, 2), i32(c, 2), 8, freq_base=1), "freq_base must be above 1"),
    ("yarn without context", lambda c: ops.rope(f32(c, 8, 1, 2), i32(c, 2), 8, ext_factor=1.0), "needs n_ctx_orig"),
    ("mask of other keys", lambda c: ops.softmax(f32(c, 8, 3), f32(c, 7, 3)), "mask must be \\[8, 3 or more\\]"),
    ("mask too short", lambda c: ops.softmax(f32(c, 8, 3), f32(c, 8, 2)), "mask must be"),
    ("mask of integers", lambda c: ops.softmax(f32(c), i32(c, 8, 3)), "f32 or f16"),
    ("sinks missing", lambda c: ops.softmax(f32(c, 8, 3, 4), sinks=f32(c, 3)), "sinks are f32 \\[4\\]"),
    ("f32 mask in one pass", lambda c: ops.flash_attention(*(f32(c, 8, 3),) * 3, f32(c, 3, 3)), "mask must be f16"),
    ("heads that do not divide", lambda c: ops.flash_attention(
        f32(c, 8, 3, 4), f32(c, 8, 3, 3), f32(c, 8, 3, 3)), "do not fit"),
    ("k-quant keys", lambda c: ops.flash_attention(
        f32(c, 256, 1), c.zeros("q4_K", (256, 3)), f32(c, 8, 3)), "k and v are f32"),
    *((f"softcap of {cap}", lambda c, cap=cap: ops.flash_attention(*(f32(c),) * 3, softcap=cap),
       "flash_attention: softcap is 0 for none, or 0.001 to 1e\\+06, got")
      for cap in (-1, -1e-300, 1e-300, 9e-4, 1.1e6, 2.0**80, math.inf, math.nan)),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "message"), [c[1:] for c in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_refusals(ctx: Context, attempt: Call, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        attempt(ctx)


WRONG_KINDS: list[tuple[str, Call]] = [
    ("no tensor", lambda c: ops.sqr(None)),  # type: ignore[arg-type]
    ("an array", lambda c: ops.sqr(np.zeros(4))),  # type: ignore[arg-type]
    ("a number as text", lambda c: ops.scale(f32(c), object())),  # type: ignore[arg-type]
    ("a fraction as axis", lambda c: ops.permute(f32(c), 1.0, 0, 2, 3)),  # type: ignore[arg-type]
    ("a fraction as k", lambda c: ops.top_k(f32(c), 2.0)),  # type: ignore[arg-type]
    ("a fraction as stride", lambda c: ops.view(f32(c), (1, 2), (4.0,))),  # type: ignore[arg-type]
    ("a fraction as n_dims", lambda c: ops.rope(f32(c, 8, 1, 2), i32(c, 2), 8.0)),  # type: ignore[arg-type]
    ("no shape", lambda c: ops.view(f32(c), None)),  # type: ignore[arg-type]
    ("no name", lambda c: ops.unary(f32(c), None)),  # type: ignore[arg-type]
    ("a name of bytes", lambda c: ops.cast(f32(c), b"f16")),  # type: ignore[arg-type]
    ("a mask of numbers", lambda c: ops.softmax(f32(c), 0.0)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("attempt", [c[1] for c in WRONG_KINDS], ids=[c[0] for c in WRONG_KINDS])
def test_wrong_kinds(ctx: Context, attempt: Call) -> None:
    with pytest.raises(TypeError):
        attempt(ctx)


def test_weights_alone_make_no_graph(ctx: Context) -> None:
    from ollama_engine.ml.graph.storage import Storage  # noqa: PLC0415

    with Storage(ctx.backend, 1) as storage:
        t = storage.add("t", "f32", (4,))
        storage.allocate(0)
        with pytest.raises(ShapeError, match="no operand belongs to a context"):
            ops.sqr(t)


# Tensors with a dimension of size 1 whose stride is not that of a fresh tensor. They count as contiguous, but kernels
# that step by that stride would leave their memory, and others abort.
ODD: list[tuple[str, Callable[[Context, np.ndarray], Tensor]]] = [
    ("a column turned", lambda c, x: ops.transpose(ops.reshape(c.from_floats(x), 1, x.size))),
    ("one row of many", lambda c, x: ops.permute(ops.reshape(c.from_floats(x), 4, x.size // 4), 0, 2, 1, 3)),
    ("one head of many", lambda c, x: ops.permute(ops.reshape(c.from_floats(x), 4, 1, x.size // 4), 0, 2, 1, 3)),
    ("one element of a row", lambda c, x: ops.permute(ops.reshape(c.from_floats(x), x.size, 1), 1, 0, 2, 3)),
]  # fmt: skip
UNARY: list[tuple[str, Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = [
    ("sqr", ops.sqr, np.square),
    ("silu", lambda t: ops.unary(t, "silu"), lambda x: x / (1 + np.exp(-x))),
    ("glu", lambda t: ops.glu(t, t, "relu"), lambda x: np.maximum(x, 0) * x),
    ("scale", lambda t: ops.scale(t, 2, 1), lambda x: 2 * x + 1),
    ("clamp", lambda t: ops.clamp(t, 0, 1), lambda x: np.clip(x, 0, 1)),
    ("argsort", lambda t: ops.get_rows(ops.reshape(t, 1, t.dim(0), t.dim(1) * t.dim(2)),
                                       ops.reshape(ops.argsort(t), t.dim(0), t.dim(1) * t.dim(2))), np.sort),
    ("repeat", lambda t: ops.repeat(t, *(t.dim(i) for i in range(4))), lambda x: x),
    ("concat", lambda t: ops.view(ops.concat(t, t, 3), tuple(t.dim(i) for i in range(4))), lambda x: x),
    ("softmax", lambda t: ops.softmax(ops.scale(t, 0)), lambda x: np.full_like(x, 1 / x.shape[-1])),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected"), [c[1:] for c in UNARY], ids=[c[0] for c in UNARY])
@pytest.mark.parametrize("layout", [c[1] for c in ODD], ids=[c[0] for c in ODD])
def test_odd_strides_of_single_elements(
    ctx: Context,
    layout: Callable[[Context, np.ndarray], Tensor],
    op: Callable[[Tensor], Tensor],
    expected: Callable[[np.ndarray], np.ndarray],
) -> None:
    values = np.random.default_rng(1).normal(0, 1, 24).astype(np.float32)
    t = layout(ctx, values)
    y = op(t)
    ctx.forward(y)
    ctx.compute()
    rows = values.reshape(-1, t.dim(0))
    np.testing.assert_allclose(y.numpy().reshape(rows.shape), expected(rows), rtol=1e-5, atol=1e-6)
