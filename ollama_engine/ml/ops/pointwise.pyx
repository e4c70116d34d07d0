"""Functions of single numbers with our own kernels (csrc/kernels/pointwise.h), for graphs that the CPU computes.

They are ggml custom operations, which only ggml's CPU backend runs.
"""

from libc.stdint cimport uint32_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ops.operands cimport dense_f32, read_softcap
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, graph_of, wrap


cdef extern from "base/float_bits.h" nogil:
    uint32_t oe_float_bits(float x) noexcept

cdef extern from "kernels/pointwise.h" nogil:
    void oe_gelu_op(lib.ggml_tensor *dst, int ith, int nth, void *unused) noexcept
    void oe_gelu_tanh_op(lib.ggml_tensor *dst, int ith, int nth, void *unused) noexcept
    void oe_soft_cap_op(lib.ggml_tensor *dst, int ith, int nth, void *cap_bits) noexcept


cdef Tensor _pointwise(Tensor a, str op, lib.ggml_custom_op_t callback, void *userdata):
    cdef Graph graph = graph_of(a)
    cdef lib.ggml_tensor *operand = dense_f32(graph, a, op)
    return wrap(graph, lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, operand.ne[0], operand.ne[1], operand.ne[2],
                                          operand.ne[3], &operand, 1, callback, lib.GGML_N_TASKS_MAX, userdata))


def gelu_exact(Tensor a not None):
    """x * Phi(x), with Phi of the normal distribution. Within 2e-7 * max(1, |x|) of unary's gelu_erf, much faster."""
    return _pointwise(a, "gelu_exact", oe_gelu_op, NULL)


def gelu_tanh(Tensor a not None):
    """x * sigmoid(sqrt(8 / pi) * (x + 0.044715 x^3)), within 1e-6 * max(1, |x|)."""
    return _pointwise(a, "gelu_tanh", oe_gelu_tanh_op, NULL)


def soft_cap(Tensor a not None, cap):
    """cap * tanh(x / cap), rounded once from double precision; never beyond the cap, 0.001 to 1e6."""
    cdef float limit = read_softcap(cap, "soft_cap")
    if limit == 0:
        raise ShapeError("soft_cap: a cap of 0 stands for none")
    return _pointwise(a, "soft_cap", oe_soft_cap_op, <void *><size_t>oe_float_bits(limit))
