"""The exact form of GELU with our own kernel (csrc/kernels/gelu.h), for graphs that the CPU computes.

It is a ggml custom operation, which only ggml's CPU backend runs.
"""

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ops.operands cimport dense_f32
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, alive, graph_of, wrap


cdef extern from "kernels/gelu.h" nogil:
    void oe_gelu_op(lib.ggml_tensor *dst, int ith, int nth, void *unused) noexcept


def lies_on_cpu(Tensor weight not None):
    """Whether products of this weight are computed on the CPU: it lies in the host's memory, mapped or not."""
    alive(weight)
    cdef lib.ggml_tensor *w = weight.ptr
    if w.buffer == NULL or not lib.ggml_backend_buffer_is_host(w.buffer):
        return False
    device = lib.ggml_backend_buft_get_device(lib.ggml_backend_buffer_get_type(w.buffer))
    # A buffer type without a device is that of a mapped file.
    return device == NULL or lib.get_dev_type(device) == lib.GGML_BACKEND_DEVICE_TYPE_CPU


def gelu_exact(Tensor a not None):
    """x * Phi(x), with Phi of the normal distribution. Within 2e-7 * max(1, |x|) of unary's gelu_erf, much faster."""
    cdef Graph graph = graph_of(a)
    cdef lib.ggml_tensor *operand = dense_f32(graph, a, "gelu_exact")
    return wrap(graph, lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, operand.ne[0], operand.ne[1], operand.ne[2],
                                          operand.ne[3], &operand, 1, oe_gelu_op, lib.GGML_N_TASKS_MAX, NULL))
