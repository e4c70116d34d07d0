"""Arithmetic, activations, normalisation and reductions: element by element or along rows, all in f32."""

import math

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.tensor cimport Graph, Tensor, describe, graph_of, wrap

ctypedef lib.ggml_tensor *(*one_operand)(lib.ggml_context *, lib.ggml_tensor *) noexcept nogil

_UNARY = {
    "abs": lib.GGML_UNARY_OP_ABS, "neg": lib.GGML_UNARY_OP_NEG, "tanh": lib.GGML_UNARY_OP_TANH,
    "relu": lib.GGML_UNARY_OP_RELU, "sigmoid": lib.GGML_UNARY_OP_SIGMOID, "gelu": lib.GGML_UNARY_OP_GELU,
    "gelu_quick": lib.GGML_UNARY_OP_GELU_QUICK, "silu": lib.GGML_UNARY_OP_SILU, "exp": lib.GGML_UNARY_OP_EXP,
    "softplus": lib.GGML_UNARY_OP_SOFTPLUS, "gelu_erf": lib.GGML_UNARY_OP_GELU_ERF,
}  # fmt: skip
_GATED = {
    "relu": lib.GGML_GLU_OP_REGLU, "gelu": lib.GGML_GLU_OP_GEGLU, "silu": lib.GGML_GLU_OP_SWIGLU,
    "gelu_erf": lib.GGML_GLU_OP_GEGLU_ERF, "gelu_quick": lib.GGML_GLU_OP_GEGLU_QUICK,
}  # fmt: skip


cdef int need_f32(Tensor a, str op) except -1:
    if a.ptr.type != lib.GGML_TYPE_F32:
        raise ShapeError(f"{op}: expected f32, got {describe(a)}; use ops.cast(...)")
    return 0


cdef int need_rows(Tensor a, str op) except -1:
    """Elements of a row lie side by side; the rows themselves may lie anywhere."""
    need_f32(a, op)
    if a.ptr.nb[0] != sizeof(float):
        raise ShapeError(f"{op}: rows of {describe(a)} must be contiguous; use ops.cont(...)")
    return 0


cdef int need_dense(Tensor a, str op) except -1:
    need_f32(a, op)
    if not lib.ggml_is_contiguous(a.ptr):
        raise ShapeError(f"{op}: {describe(a)} must be contiguous; use ops.cont(...)")
    return 0


cdef double finite(object value, str op, str name) except? -1.0:
    cdef double number = float(value)
    if not math.isfinite(number):
        raise ShapeError(f"{op}: {name} must be a finite number, got {value}")
    return number


cdef Tensor _apply(Tensor a, one_operand op, str name):
    cdef Graph graph = graph_of(a)
    need_dense(a, name)
    return wrap(graph, op(graph.ctx, a.ptr))


def unary(Tensor a not None, str name):
    """One of abs, neg, tanh, relu, sigmoid, gelu (tanh form), gelu_erf, gelu_quick, silu, exp, softplus."""
    cdef Graph graph = graph_of(a)
    kind = _UNARY.get(name)
    if kind is None:
        raise ShapeError(f"unknown activation {name!r}; known: {', '.join(_UNARY)}")
    need_dense(a, name)
    return wrap(graph, lib.ggml_unary(graph.ctx, a.ptr, kind))


def glu(Tensor gate not None, Tensor up not None, str name="silu"):
    """activation(gate) * up, fused; activation is silu, gelu, gelu_erf, gelu_quick or relu (Shazeer 2020)."""
    cdef Graph graph = graph_of(gate, up)
    kind = _GATED.get(name)
    if kind is None:
        raise ShapeError(f"unknown gated activation {name!r}; known: {', '.join(_GATED)}")
    need_dense(gate, "glu")
    need_dense(up, "glu")
    if not lib.ggml_are_same_shape(gate.ptr, up.ptr):
        raise ShapeError(f"glu: both sides need one shape, got {describe(gate)} and {describe(up)}")
    return wrap(graph, lib.ggml_glu_split(graph.ctx, gate.ptr, up.ptr, kind))


def sqr(Tensor a not None):
    return _apply(a, lib.ggml_sqr, "sqr")


def sqrt(Tensor a not None):
    return _apply(a, lib.ggml_sqrt, "sqrt")


def log(Tensor a not None):
    return _apply(a, lib.ggml_log, "log")


def sin(Tensor a not None):
    return _apply(a, lib.ggml_sin, "sin")


def cos(Tensor a not None):
    return _apply(a, lib.ggml_cos, "cos")


def scale(Tensor a not None, factor, bias=0.0):
    """a * factor + bias."""
    cdef Graph graph = graph_of(a)
    need_dense(a, "scale")
    return wrap(graph, lib.ggml_scale_bias(graph.ctx, a.ptr, finite(factor, "scale", "factor"),
                                           finite(bias, "scale", "bias")))


def clamp(Tensor a not None, low, high):
    """Every value bounded to low .. high; a new tensor."""
    cdef Graph graph = graph_of(a)
    need_dense(a, "clamp")
    if not float(low) <= float(high):
        raise ShapeError(f"clamp: low must not exceed high, got {low} and {high}")
    # ggml_clamp works in place; the copy keeps `a` as it is.
    copy = lib.ggml_cont(graph.ctx, a.ptr)
    return wrap(graph, lib.ggml_clamp(graph.ctx, copy, float(low), float(high)))


cdef float _epsilon(object eps, str op) except? -1.0:
    cdef double value = finite(eps, op, "eps")
    if value < 0:
        raise ShapeError(f"{op}: eps must not be negative, got {eps}")
    return value


def rms_norm(Tensor a not None, eps):
    """a / sqrt(mean(a^2) + eps) along rows (Zhang and Sennrich 2019); multiply with the weight yourself."""
    cdef Graph graph = graph_of(a)
    need_rows(a, "rms_norm")
    return wrap(graph, lib.ggml_rms_norm(graph.ctx, a.ptr, _epsilon(eps, "rms_norm")))


def layer_norm(Tensor a not None, eps):
    """(a - mean) / sqrt(variance + eps) along rows (Ba et al. 2016), without weight and bias."""
    cdef Graph graph = graph_of(a)
    need_rows(a, "layer_norm")
    return wrap(graph, lib.ggml_norm(graph.ctx, a.ptr, _epsilon(eps, "layer_norm")))


def l2_norm(Tensor a not None, eps):
    """a / max(|a|, eps) along rows."""
    cdef Graph graph = graph_of(a)
    need_rows(a, "l2_norm")
    return wrap(graph, lib.ggml_l2_norm(graph.ctx, a.ptr, _epsilon(eps, "l2_norm")))


def sum_rows(Tensor a not None):
    """Sum along rows: [n, ...] -> [1, ...]."""
    cdef Graph graph = graph_of(a)
    need_rows(a, "sum_rows")
    return wrap(graph, lib.ggml_sum_rows(graph.ctx, a.ptr))


def mean(Tensor a not None):
    """Mean along rows: [n, ...] -> [1, ...]."""
    cdef Graph graph = graph_of(a)
    need_rows(a, "mean")
    return wrap(graph, lib.ggml_mean(graph.ctx, a.ptr))


def argsort(Tensor a not None, bint descending=False):
    """Places of the values of each row in order, i32."""
    cdef Graph graph = graph_of(a)
    need_dense(a, "argsort")
    order = lib.GGML_SORT_ORDER_DESC if descending else lib.GGML_SORT_ORDER_ASC
    return wrap(graph, lib.ggml_argsort(graph.ctx, a.ptr, order))


def top_k(Tensor a not None, k):
    """Places of the k largest values of each row, largest first, i32 [k, ...] (a view of the whole order)."""
    cdef int64_t count = k
    if not 1 <= count <= a.dim(0):
        raise ShapeError(f"top_k: k is 1 to {a.dim(0)}, the row's length, got {k}")
    cdef Tensor order = argsort(a, True)
    cdef Graph graph = graph_of(order)
    cdef lib.ggml_tensor *t = order.ptr
    return wrap(graph, lib.ggml_view_4d(graph.ctx, t, count, t.ne[1], t.ne[2], t.ne[3], t.nb[1], t.nb[2], t.nb[3], 0))
