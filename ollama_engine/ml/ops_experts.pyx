"""Operations of our own for mixtures of experts, as custom operations of ggml's, which only its CPU backend runs.

Products (csrc/kernels/small_batch/experts_op.h) enter a graph as three of them: the first sorts the rows by their
experts, the second quantizes the activations in that order, the third multiplies. Weighted sums of rows
(csrc/kernels/weighted_sum_op.h) are one.
"""

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.computation cimport Computation
from ollama_engine.ml.libsmallbatch cimport (
    oe_experts_acts_size, oe_experts_multiply_op, oe_experts_plan_op, oe_experts_plan_size, oe_experts_quantize_op,
    oe_sb_kernel, oe_weighted_sum_op,
)
from ollama_engine.ml.ops_small_batch cimport custom, kernel_of
from ollama_engine.ml.tensor cimport Graph, Tensor, alive, describe, graph_of, wrap

from ollama_engine.ml.ops_small_batch import SMALL_BATCH_QUANTIZED

# One thread sorts them, by numbers of 32 bits.
cdef int64_t MAX_ROUTES = 1 << 22


cdef int _check(Tensor experts, Tensor b, Tensor ids) except -1:
    cdef lib.ggml_tensor *x = experts.ptr
    cdef lib.ggml_tensor *y = b.ptr
    cdef lib.ggml_tensor *i = ids.ptr
    if not lib.ggml_is_contiguous(x):
        raise ShapeError(f"mul_mat_id_small_batch: the experts {describe(experts)} must be contiguous")
    if y.type != lib.GGML_TYPE_F32 or y.nb[0] != sizeof(float):
        raise ShapeError(f"mul_mat_id_small_batch: the values must be f32 with contiguous rows, got {describe(b)}")
    if i.type != lib.GGML_TYPE_I32 or i.nb[0] != sizeof(int):
        raise ShapeError(f"mul_mat_id_small_batch: the ids must be i32 with contiguous rows, got {describe(ids)}")
    if x.ne[3] != 1 or y.ne[3] != 1 or i.ne[2] != 1 or i.ne[3] != 1:
        raise ShapeError("mul_mat_id_small_batch: experts and values have up to 3 dimensions, ids 2; "
                         f"got {describe(experts)}, {describe(b)}, {describe(ids)}")
    if x.ne[0] != y.ne[0] or i.ne[1] != y.ne[2] or i.ne[0] % y.ne[1]:
        raise ShapeError(f"mul_mat_id_small_batch: {describe(experts)}, {describe(b)} and ids {describe(ids)} do not "
                         f"fit: expected values [{x.ne[0]}, {i.ne[0]} or 1, {i.ne[1]}]")
    if i.ne[0] > MAX_ROUTES // i.ne[1]:
        raise ShapeError(f"mul_mat_id_small_batch: {describe(ids)} is more than {MAX_ROUTES} ids; use mul_mat_id")
    return 0


cdef Tensor _plan(Graph graph, Tensor ids, int64_t experts):
    """The ids sorted. Products with the same ids share it: gate, up and down do."""
    cdef int64_t[4] ne = [oe_experts_plan_size(ids.ptr.ne[0] * ids.ptr.ne[1], experts), 1, 1, 1]
    cdef lib.ggml_tensor *operand = ids.ptr
    key = (<size_t>operand, experts)
    plan = graph.rounded.get(key)
    if plan is None:
        plan = wrap(graph, custom(graph, ne, lib.GGML_TYPE_I32, &operand, 1, oe_experts_plan_op, 1,
                                  <void *><size_t>experts))
        graph.rounded[key] = plan
    return plan


cdef Tensor _rounded(Graph graph, Tensor b, Tensor ids, Tensor plan, const oe_sb_kernel *kernel):
    """The activations as the kernel takes them. Products of the same values and ids share them: gate and up do."""
    cdef int64_t[4] ne = [oe_experts_acts_size(kernel, b.ptr.ne[0], ids.ptr.ne[0] * ids.ptr.ne[1]), 1, 1, 1]
    cdef lib.ggml_tensor *operands[3]
    key = (<size_t>b.ptr, <size_t>plan.ptr, <size_t>kernel.quantize, kernel.multiply_single != NULL)
    acts = graph.rounded.get(key)
    if acts is None:
        operands[0], operands[1], operands[2] = b.ptr, ids.ptr, plan.ptr
        acts = wrap(graph, custom(graph, ne, lib.GGML_TYPE_I8, operands, 3, oe_experts_quantize_op,
                                  lib.GGML_N_TASKS_MAX, <void *>kernel))
        graph.rounded[key] = acts
    return acts


def mul_mat_id_small_batch(Tensor experts not None, Tensor b not None, Tensor ids not None, str instructions=None):
    """One matrix for each row, as mul_mat_id: experts [n, m, e] of type q4_K, q6_K, q4_0, q8_0 or mxfp4, b f32
    [n, used or 1, k], ids i32 [used, k] -> f32 [m, used, k].

    Up to 2**22 ids are right, few for each expert are fast. Rows may name the same expert, also those of one token. `b`
    is rounded to 8 bits as by mul_mat_id. A row of the result has the same bits whatever the others are, and on every
    CPU. `instructions`: one of `small_batch_instructions(experts.dtype)`; None takes the last.
    """
    cdef Graph graph = graph_of(experts, b, ids)
    cdef lib.ggml_tensor *operands[3]
    cdef int64_t[4] ne
    kernel = kernel_of("mul_mat_id_small_batch", SMALL_BATCH_QUANTIZED, experts, instructions)
    _check(experts, b, ids)
    plan = _plan(graph, ids, experts.ptr.ne[2])
    acts = _rounded(graph, b, ids, plan, kernel)
    operands[0], operands[1], operands[2] = experts.ptr, (<Tensor>acts).ptr, (<Tensor>plan).ptr
    ne[0], ne[1], ne[2], ne[3] = experts.ptr.ne[1], ids.ptr.ne[0], ids.ptr.ne[1], 1
    result = custom(graph, ne, lib.GGML_TYPE_F32, operands, 3, oe_experts_multiply_op, lib.GGML_N_TASKS_MAX,
                    <void *>kernel)
    graph.limit_index(ids, experts.ptr.ne[2], result)
    return wrap(graph, result)


def suits_weighted_sum(Tensor x not None):
    """Whether weighted_sum is chosen here for a result of a graph: where nothing but the CPU computes."""
    alive(x)
    return x.owner.is_graph and (<Computation>x.owner).backend.n_handles == 1


def weighted_sum(Tensor x not None, Tensor weights not None):
    """Sum of rows with a weight each, in order: x f32 [m, rows, n], weights f32 [1, rows, n] -> f32 [m, n]."""
    cdef Graph graph = graph_of(x, weights)
    cdef lib.ggml_tensor *a = x.ptr
    cdef lib.ggml_tensor *w = weights.ptr
    cdef lib.ggml_tensor *operands[2]
    cdef int64_t[4] ne = [a.ne[0], a.ne[2], 1, 1]
    if a.type != lib.GGML_TYPE_F32 or a.nb[0] != sizeof(float) or w.type != lib.GGML_TYPE_F32:
        raise ShapeError(f"weighted_sum: expected f32 with contiguous rows and f32 weights, got {describe(x)} and "
                         f"{describe(weights)}")
    if w.ne[0] != 1 or w.ne[1] != a.ne[1] or w.ne[2] != a.ne[2] or w.ne[3] != 1 or a.ne[3] != 1:
        raise ShapeError(f"weighted_sum: {describe(x)} takes weights [1, {a.ne[1]}, {a.ne[2]}], "
                         f"got {describe(weights)}")
    operands[0], operands[1] = a, w
    return wrap(graph, custom(graph, ne, lib.GGML_TYPE_F32, operands, 2, oe_weighted_sum_op, lib.GGML_N_TASKS_MAX,
                              NULL))
