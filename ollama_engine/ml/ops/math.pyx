"""Arithmetic, activations, normalisation and reductions: element by element or along rows, all in f32."""

import math

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ops.operands cimport dense_f32, finite, need_f32, need_rows
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, alive, describe, graph_of, wrap
from ollama_engine.ml.graph.types cimport whole

ctypedef lib.ggml_tensor *(*one_operand)(lib.ggml_context *, lib.ggml_tensor *) noexcept nogil

cdef dict _UNARY = {
    "abs": lib.GGML_UNARY_OP_ABS, "neg": lib.GGML_UNARY_OP_NEG, "tanh": lib.GGML_UNARY_OP_TANH,
    "relu": lib.GGML_UNARY_OP_RELU, "sigmoid": lib.GGML_UNARY_OP_SIGMOID, "gelu": lib.GGML_UNARY_OP_GELU,
    "gelu_quick": lib.GGML_UNARY_OP_GELU_QUICK, "silu": lib.GGML_UNARY_OP_SILU, "exp": lib.GGML_UNARY_OP_EXP,
    "softplus": lib.GGML_UNARY_OP_SOFTPLUS, "gelu_erf": lib.GGML_UNARY_OP_GELU_ERF,
    "floor": lib.GGML_UNARY_OP_FLOOR,
}  # fmt: skip
cdef dict _GATED = {
    "relu": lib.GGML_GLU_OP_REGLU, "gelu": lib.GGML_GLU_OP_GEGLU, "silu": lib.GGML_GLU_OP_SWIGLU,
    "gelu_erf": lib.GGML_GLU_OP_GEGLU_ERF, "gelu_quick": lib.GGML_GLU_OP_GEGLU_QUICK,
}  # fmt: skip


cdef Tensor _apply(Tensor a, one_operand op, str name):
    cdef Graph graph = graph_of(a)
    return wrap(graph, op(graph.ctx, dense_f32(graph, a, name)))


def unary(Tensor a not None, str name not None):
    """One of abs, neg, tanh, relu, sigmoid, gelu (tanh form), gelu_erf, gelu_quick, silu, exp, softplus, floor."""
    kind = _UNARY.get(name)
    if kind is None:
        raise ShapeError(f"unknown activation {name!r}; known: {', '.join(_UNARY)}")
    cdef Graph graph = graph_of(a)
    return wrap(graph, lib.ggml_unary(graph.ctx, dense_f32(graph, a, name), kind))


cdef lib.ggml_tensor *_gated(Graph graph, Tensor a) except NULL:
    """An operand of glu: ggml reads the rows of a matrix wherever they lie."""
    if a.ptr.nb[0] == sizeof(float) and a.ptr.ne[2] == a.ptr.ne[3] == 1:
        need_f32(a, "glu")
        return a.ptr
    return dense_f32(graph, a, "glu")


def glu(Tensor gate not None, Tensor up not None, str name not None="silu"):
    """activation(gate) * up, fused; activation is silu, gelu, gelu_erf, gelu_quick or relu (Shazeer 2020).

    Rows of matrices are contiguous; other operands are contiguous as a whole.
    """
    kind = _GATED.get(name)
    if kind is None:
        raise ShapeError(f"unknown gated activation {name!r}; known: {', '.join(_GATED)}")
    cdef Graph graph = graph_of(gate, up)
    if not lib.ggml_are_same_shape(gate.ptr, up.ptr):
        raise ShapeError(f"glu: both sides need one shape, got {describe(gate)} and {describe(up)}")
    return wrap(graph, lib.ggml_glu_split(graph.ctx, _gated(graph, gate), _gated(graph, up), kind))


def xielu(Tensor a not None, alpha_n, alpha_p, beta, eps):
    """xIELU (Huang and Schlag 2024), of four numbers as they are learned.

    With p = softplus(alpha_p) and n = beta + softplus(alpha_n): beta x + p x^2 above 0, beta x + n (e^min(x, eps) - 1 -
    x) elsewhere.
    """
    cdef float numbers[4]
    for i, (name, value) in enumerate((("alpha_n", alpha_n), ("alpha_p", alpha_p), ("beta", beta), ("eps", eps))):
        numbers[i] = finite(value, "xielu", name)
    cdef Graph graph = graph_of(a)
    cdef lib.ggml_tensor *rows = dense_f32(graph, a, "xielu")
    return wrap(graph, lib.ggml_xielu(graph.ctx, rows, numbers[0], numbers[1], numbers[2], numbers[3]))


def clamped_swiglu(Tensor gate not None, Tensor up not None, gain, limit):
    """g * sigmoid(gain * g) * (u + 1), with g = gate up to `limit`, and u = up within -limit .. limit (gpt-oss).

    Operands are as those of `glu`. GPUs compute it together with the products before it.
    """
    cdef double slope = finite(gain, "clamped_swiglu", "gain"), most = finite(limit, "clamped_swiglu", "limit")
    cdef Graph graph = graph_of(gate, up)
    if most < 0:
        raise ShapeError(f"clamped_swiglu: limit must not be negative, got {limit}")
    if not lib.ggml_are_same_shape(gate.ptr, up.ptr):
        raise ShapeError(f"clamped_swiglu: both sides need one shape, got {describe(gate)} and {describe(up)}")
    return wrap(graph, lib.ggml_swiglu_oai(graph.ctx, _gated(graph, gate), _gated(graph, up), slope, most))


def sqr(Tensor a not None):
    """`a * a` for each element, f32."""
    return _apply(a, lib.ggml_sqr, "sqr")


def sqrt(Tensor a not None):
    """Square root; nan below 0."""
    return _apply(a, lib.ggml_sqrt, "sqrt")


def log(Tensor a not None):
    """Natural logarithm; nan below 0, -inf at 0."""
    return _apply(a, lib.ggml_log, "log")


def sin(Tensor a not None):
    """Sine of angles in radians."""
    return _apply(a, lib.ggml_sin, "sin")


def cos(Tensor a not None):
    """Cosine of angles in radians."""
    return _apply(a, lib.ggml_cos, "cos")


def scale(Tensor a not None, factor, bias=0.0):
    """a * factor + bias."""
    cdef double s = finite(factor, "scale", "factor")
    cdef double b = finite(bias, "scale", "bias")
    cdef Graph graph = graph_of(a)
    return wrap(graph, lib.ggml_scale_bias(graph.ctx, dense_f32(graph, a, "scale"), s, b))


cdef double _bound(object value, str name) except? -1.0:
    cdef double number = float(value)
    return number if math.isinf(number) else finite(number, "clamp", name)


def clamp(Tensor a not None, low, high):
    """Every value bounded to low .. high, either of which may be infinite; nan becomes `high`."""
    cdef double least = _bound(low, "low")
    cdef double most = _bound(high, "high")
    if least > most:
        raise ShapeError(f"clamp: low must not exceed high, got {low} and {high}")
    cdef Graph graph = graph_of(a)
    return wrap(graph, lib.ggml_clamp(graph.ctx, dense_f32(graph, a, "clamp"), least, most))


cdef double _epsilon(object eps, str op) except? -1.0:
    cdef double value = finite(eps, op, "eps")
    if value < 0:
        raise ShapeError(f"{op}: eps must not be negative, got {eps}")
    return value


def rms_norm(Tensor a not None, eps):
    """a / sqrt(mean(a^2) + eps) along rows (Zhang and Sennrich 2019); multiply with the weight yourself."""
    cdef double e = _epsilon(eps, "rms_norm")
    cdef Graph graph = graph_of(a)
    need_rows(a, "rms_norm")
    return wrap(graph, lib.ggml_rms_norm(graph.ctx, a.ptr, e))


def layer_norm(Tensor a not None, eps):
    """(a - mean) / sqrt(variance + eps) along rows (Ba et al. 2016), without weight and bias."""
    cdef double e = _epsilon(eps, "layer_norm")
    cdef Graph graph = graph_of(a)
    need_rows(a, "layer_norm")
    return wrap(graph, lib.ggml_norm(graph.ctx, a.ptr, e))


def l2_norm(Tensor a not None, eps):
    """a / max(|a|, eps) along rows."""
    cdef double e = _epsilon(eps, "l2_norm")
    cdef Graph graph = graph_of(a)
    need_rows(a, "l2_norm")
    return wrap(graph, lib.ggml_l2_norm(graph.ctx, a.ptr, e))


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


cdef lib.ggml_tensor *_order(Graph graph, Tensor a, bint descending) except NULL:
    cdef lib.ggml_tensor *values = dense_f32(graph, a, "argsort")
    # ggml uses std::sort, which reads and writes beyond the row where nan breaks the order; so nan becomes +inf here.
    values = lib.ggml_clamp(graph.ctx, values, -math.inf, math.inf)
    return lib.ggml_argsort(graph.ctx, values, lib.GGML_SORT_ORDER_DESC if descending else lib.GGML_SORT_ORDER_ASC)


def argsort(Tensor a not None, bint descending=False):
    """Indices that sort each row, i32; nan counts as +inf. The order of equal values is undefined."""
    cdef Graph graph = graph_of(a)
    return wrap(graph, _order(graph, a, descending))


def top_k(Tensor a not None, k):
    """Indices of the k largest values of each row, largest first, i32 [k, ...]: a view of a full argsort."""
    cdef int64_t count = whole(k)
    alive(a)
    if not 1 <= count <= a.ptr.ne[0]:
        raise ShapeError(f"top_k: k is 1 to {a.ptr.ne[0]}, the row's length, got {k}")
    cdef Graph graph = graph_of(a)
    cdef lib.ggml_tensor *t = _order(graph, a, True)
    return wrap(graph, lib.ggml_view_4d(graph.ctx, t, count, t.ne[1], t.ne[2], t.ne[3], t.nb[1], t.nb[2], t.nb[3], 0))
