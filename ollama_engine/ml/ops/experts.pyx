"""Our own operations for mixtures of experts. They are ggml custom operations, which only its CPU backend runs.

A product with experts (csrc/kernels/small_batch/experts_op.h) is three nodes of the graph: the first sorts the rows by
their experts, the second quantizes the activations in that order, the third multiplies. A weighted sum of rows
(csrc/kernels/weighted_sum_op.h) is one node, and so is waiting for experts that are read from the file.
"""

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.libexpertcache cimport oe_expert_await_op, oe_expert_guess_op
from ollama_engine.ml.ggml.libsmallbatch cimport (
    oe_experts_acts_size, oe_experts_multiply_op, oe_experts_plan_op, oe_experts_plan_size, oe_experts_quantize_op,
    oe_sb_kernel_for, oe_sb_multiplying, oe_weighted_sum_op,
)
from ollama_engine.ml.ops.operands cimport check_routed
from ollama_engine.ml.ops.small_batch cimport custom, kernel_of, multiplying_by
from ollama_engine.ml.threads.expert_cache cimport CachedExperts
from ollama_engine.ml.graph.row_check cimport limit_index
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, describe, graph_of, wrap

from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED

# One thread sorts the ids, and counts them in 32 bits.
cdef int64_t MAX_ROUTES = 1 << 22


cdef Tensor _plan(Graph graph, Tensor ids, int64_t experts):
    """The node that sorts the ids. Gate, up and down have the same ids and share it."""
    cdef int64_t[4] ne = [oe_experts_plan_size(ids.ptr.ne[0] * ids.ptr.ne[1], experts), 1, 1, 1]
    cdef lib.ggml_tensor *operand = ids.ptr
    key = (<size_t>operand, experts)
    plan = graph.rounded.get(key)
    if plan is None:
        plan = wrap(graph, custom(graph, ne, lib.GGML_TYPE_I32, &operand, 1, oe_experts_plan_op, 1,
                                  <void *><size_t>experts))
        graph.rounded[key] = plan
    return plan


cdef Tensor _rounded(Graph graph, Tensor b, Tensor ids, Tensor plan, oe_sb_multiplying *by):
    """The node that quantizes the activations. Gate and up have the same values and ids and share it."""
    cdef int64_t[4] ne = [oe_experts_acts_size(by.kernel, b.ptr.ne[0], ids.ptr.ne[0] * ids.ptr.ne[1]), 1, 1, 1]
    cdef lib.ggml_tensor *operands[3]
    # Few rows are laid out for multiply_interleaved of the kernel for few rows, as far as the variant takes it.
    few = oe_sb_kernel_for(by.kernel, 1)
    key = (<size_t>b.ptr, <size_t>plan.ptr, <size_t>by.kernel.quantize, few.interleaved, few.whole,
           by.variant.rows_in_lanes)
    acts = graph.rounded.get(key)
    if acts is None:
        operands[0], operands[1], operands[2] = b.ptr, ids.ptr, plan.ptr
        acts = wrap(graph, custom(graph, ne, lib.GGML_TYPE_I8, operands, 3, oe_experts_quantize_op,
                                  lib.GGML_N_TASKS_MAX, <void *>by))
        graph.rounded[key] = acts
    return acts


def mul_mat_id_small_batch(Tensor experts not None, Tensor b not None, Tensor ids not None, str instructions=None,
                           str variant not None="spread"):
    """One matrix for each row, as mul_mat_id: experts [n, m, e] of a type in SMALL_BATCH_QUANTIZED, b f32
    [n, used or 1, k], ids i32 [used, k] -> f32 [m, used, k].

    Takes up to 2**22 ids, and is fast where few rows choose the same expert. Ids may repeat, also within one token. `b`
    is quantized to 8 bits as in mul_mat_id. A row of the result has the same bits on every CPU and whatever the other
    rows are. `instructions`: one of `small_batch_instructions(experts.dtype)`; None takes the last. `variant`: one of
    SMALL_BATCH_VARIANTS, as for mul_mat_small_batch.
    """
    cdef Graph graph = graph_of(experts, b, ids)
    cdef lib.ggml_tensor *operands[3]
    cdef int64_t[4] ne
    kernel = kernel_of("mul_mat_id_small_batch", SMALL_BATCH_QUANTIZED, experts, instructions)
    check_routed("mul_mat_id_small_batch", experts, b, ids)
    if b.ptr.nb[0] != sizeof(float):
        raise ShapeError(f"mul_mat_id_small_batch: the values must be f32 with contiguous rows, got {describe(b)}")
    if ids.ptr.ne[0] > MAX_ROUTES // ids.ptr.ne[1]:
        raise ShapeError(f"mul_mat_id_small_batch: {describe(ids)} is more than {MAX_ROUTES} ids; use mul_mat_id")
    plan = _plan(graph, ids, experts.ptr.ne[2])
    by = multiplying_by("mul_mat_id_small_batch", graph, kernel, variant)
    acts = _rounded(graph, b, ids, plan, by)
    operands[0], operands[1], operands[2] = experts.ptr, (<Tensor>acts).ptr, (<Tensor>plan).ptr
    ne[0], ne[1], ne[2], ne[3] = experts.ptr.ne[1], ids.ptr.ne[0], ids.ptr.ne[1], 1
    result = custom(graph, ne, lib.GGML_TYPE_F32, operands, 3, oe_experts_multiply_op, lib.GGML_N_TASKS_MAX, by)
    limit_index(graph, ids, experts.ptr.ne[2], result)
    return wrap(graph, result)


def await_experts(Tensor experts not None, Tensor ids not None):
    """A node after which the experts that ids i32 [used, k] names are in memory, and stay there until another layer's.

    Nothing reads its value: expand a graph by it before the product. `experts` are `cached`.
    """
    return _cached(graph_of(experts, ids), "await_experts", experts, ids, oe_expert_await_op)


def guess_experts(Tensor experts not None, Tensor ids not None):
    """A node that has experts read while the layer before theirs computes: those of ids i32 [used, k], best first.

    It changes no result. Expand a graph by it before the products of that layer. `experts` are `cached`.
    """
    return _cached(graph_of(experts, ids), "guess_experts", experts, ids, oe_expert_guess_op)


cdef Tensor _cached(Graph graph, str name, Tensor experts, Tensor ids, lib.ggml_custom_op_t op):
    cdef CachedExperts cached = experts.cached
    cdef lib.ggml_tensor *operand = ids.ptr
    cdef int64_t[4] ne = [1, 1, 1, 1]
    if cached is None:
        raise ShapeError(f"{name}: {describe(experts)} is not read by an ExpertCache")
    if operand.type != lib.GGML_TYPE_I32 or operand.nb[0] != sizeof(int) or operand.ne[2] * operand.ne[3] != 1:
        raise ShapeError(f"{name}: ids must be i32 [used, k] with contiguous rows, got {describe(ids)}")
    graph.kept["experts"] = cached.cache  # alive as long as the graph, and asked for errors after each computation
    return wrap(graph, custom(graph, ne, lib.GGML_TYPE_I32, &operand, 1, op, 1, cached.ptr))


def weighted_sum(Tensor x not None, Tensor weights not None):
    """Weighted sum of rows, added in order: x f32 [m, rows, n], weights f32 [1, rows, n] -> f32 [m, n]."""
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
