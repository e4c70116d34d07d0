"""The Walsh-Hadamard transform with our own kernel (csrc/kernels/hadamard.h), for graphs that the CPU computes.

It is a ggml custom operation, which only ggml's CPU backend runs.
"""

from libc.stdint cimport int64_t, intptr_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, graph_of, wrap
from ollama_engine.ml.graph.types cimport whole
from ollama_engine.ml.ops.operands cimport dense_f32


cdef extern from "kernels/hadamard.h" nogil:
    int OE_HADAMARD_MIN
    int OE_HADAMARD_MAX
    void oe_hadamard_op(lib.ggml_tensor *dst, int ith, int nth, void *block) noexcept


def hadamard(Tensor a not None, block):
    """Each run of `block` numbers of a row times the Hadamard matrix over sqrt(block): a rotation, its own inverse.

    `block`: a power of two from 16 to 1,024, which divides the row. The same bits on every CPU.
    """
    cdef Graph graph = graph_of(a)
    cdef lib.ggml_tensor *operand = dense_f32(graph, a, "hadamard")
    cdef int64_t n = whole(block)
    if not OE_HADAMARD_MIN <= n <= OE_HADAMARD_MAX or n & (n - 1) or operand.ne[0] % n:
        raise ShapeError(f"hadamard: a block is a power of two from {OE_HADAMARD_MIN} to {OE_HADAMARD_MAX} that "
                         f"divides a row of {operand.ne[0]}, got {n}")
    return wrap(graph, lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, operand.ne[0], operand.ne[1], operand.ne[2],
                                          operand.ne[3], &operand, 1, oe_hadamard_op, lib.GGML_N_TASKS_MAX,
                                          <void *><intptr_t>n))
