"""Paged attention: attention over lists of cells, with our own kernels (csrc/kernels/attention.h).

It is ggml custom operations, which only ggml's CPU backend runs: one node splits the lists into pieces, for all layers
that read them, and one node per layer attends.
"""

from cython cimport final
from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.libattention cimport (
    OE_ATTENTION_AVX2, OE_ATTENTION_AVX512, OE_ATTENTION_NEON, OE_ATTENTION_SCALAR, OE_ATTENTION_TYPES,
    oe_attention_isa, oe_attention_kernel, oe_attention_kernel_find, oe_attention_op, oe_attention_params,
    oe_attention_plan_op, oe_attention_plan_size, oe_attention_shape, oe_attention_size, oe_attention_type,
    oe_attention_type_name,
)
from ollama_engine.ml.graph.computation cimport Computation
from ollama_engine.ml.ops.operands import CACHE_TYPES
from ollama_engine.ml.ops.operands cimport finite, read_softcap
from ollama_engine.ml.graph.row_check cimport limit_index
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, describe, graph_of, wrap
from ollama_engine.ml.graph.types cimport check_size, dtype_name, type_of

cdef dict _KINDS = {
    <int>type_of((<bytes>oe_attention_type_name(<oe_attention_type>number)).decode()): number
    for number in range(OE_ATTENTION_TYPES)
}
# From the slowest to the fastest.
cdef dict _INSTRUCTIONS = {
    "scalar": OE_ATTENTION_SCALAR, "avx2": OE_ATTENTION_AVX2, "avx512": OE_ATTENTION_AVX512, "neon": OE_ATTENTION_NEON,
}  # fmt: skip


@final
cdef class _Params:
    """Parameters of one custom operation. The graph keeps it alive, since ggml holds only a pointer."""

    cdef oe_attention_params values


cdef const oe_attention_kernel *_kernel(lib.ggml_type kind, str instructions) noexcept:
    found = _KINDS.get(<int>kind)
    if found is None:
        return NULL
    return oe_attention_kernel_find(<oe_attention_type><int>found, <oe_attention_isa><int>_INSTRUCTIONS[instructions])


def paged_attention_instructions(str dtype not None):
    """Instruction sets that this CPU has a kernel of paged_attention for, slowest ("scalar") first; () for others."""
    cdef lib.ggml_type kind = type_of(dtype)
    return tuple([name for name in _INSTRUCTIONS if _kernel(kind, name) != NULL])


cdef dict _FASTEST = {
    kind: paged_attention_instructions(dtype_name(<lib.ggml_type><int>kind))[-1] for kind in _KINDS
}


def paged_attention_chosen(str dtype not None):
    """Whether paged_attention is the fast choice for keys and values of this type on this CPU.

    It is with AVX2 and FMA, AVX-512, or NEON. The plain C kernel gives the same bits but is far slower than ggml's.
    """
    return _FASTEST.get(<int>type_of(dtype), "scalar") != "scalar"


cdef int _check_operands(Tensor q, Tensor k, Tensor v) except -1:
    cdef lib.ggml_tensor *a = q.ptr
    cdef lib.ggml_tensor *b = k.ptr
    cdef lib.ggml_tensor *c = v.ptr
    if a.type != lib.GGML_TYPE_F32 or <int>b.type not in _KINDS or b.type != c.type:
        raise ShapeError(f"paged_attention: q is f32, k and v are both {CACHE_TYPES}; "
                         f"got {describe(q)}, {describe(k)}, {describe(v)}")
    for t in (q, k, v):
        _check_rows(t)
    if a.ne[0] != b.ne[0] or b.ne[1] != c.ne[1] or b.ne[2] != c.ne[2] or a.ne[2] % b.ne[2]:
        raise ShapeError(f"paged_attention: {describe(q)}, {describe(k)} and {describe(v)} do not fit")
    return 0


cdef int _check_rows(Tensor t) except -1:
    if t.ptr.nb[0] != lib.ggml_type_size(t.ptr.type) or t.ptr.nb[0] > t.ptr.nb[1]:
        raise ShapeError(f"paged_attention: {describe(t)} must have contiguous rows; use ops.cont(...)")
    if t.ptr.ne[3] != 1:
        raise ShapeError(f"paged_attention: operands have up to 3 dimensions, got {describe(t)}")
    return 0


cdef int _check_lists(Tensor parts, Tensor cells, int64_t rows) except -1:
    cdef lib.ggml_tensor *p = parts.ptr
    cdef lib.ggml_tensor *c = cells.ptr
    if p.type != lib.GGML_TYPE_I32 or p.ne[0] != 2 or p.ne[1] != rows or lib.ggml_nelements(p) != 2 * rows \
            or not lib.ggml_is_contiguous(p):
        raise ShapeError(f"paged_attention: parts are i32 [2, {rows}], one for each query, got {describe(parts)}")
    if c.type != lib.GGML_TYPE_I32 or lib.ggml_nelements(c) != c.ne[0] or not lib.ggml_is_contiguous(c) \
            or c.ne[0] >= 1 << 31:
        raise ShapeError(f"paged_attention: cells are i32 [n], got {describe(cells)}")
    return 0


cdef int _check_phases(Tensor phases, int64_t rows) except -1:
    if phases.ptr.type != lib.GGML_TYPE_I32 or phases.ptr.ne[0] != rows or lib.ggml_nelements(phases.ptr) != rows \
            or not lib.ggml_is_contiguous(phases.ptr):
        raise ShapeError(f"paged_attention: phases are i32 [{rows}], one for each query, got {describe(phases)}")
    return 0


cdef int _check_sinks(Tensor sinks, int64_t heads) except -1:
    if sinks.ptr.type != lib.GGML_TYPE_F32 or sinks.ptr.ne[0] != heads or lib.ggml_nelements(sinks.ptr) != heads \
            or not lib.ggml_is_contiguous(sinks.ptr):
        raise ShapeError(f"paged_attention: sinks are f32 [{heads}], one for each head, got {describe(sinks)}")
    return 0


cdef Tensor _plan(Graph graph, Tensor parts, Tensor cells, Tensor phases, int64_t kv_heads):
    """The node that splits the lists into pieces. All layers that read the same lists share it."""
    cdef lib.ggml_tensor *operands[3]
    key = ("plan", <size_t>parts.ptr, <size_t>cells.ptr, <size_t>phases.ptr if phases is not None else 0, kv_heads)
    plan = graph.kept.get(key)
    if plan is None:
        operands[0], operands[1] = parts.ptr, cells.ptr
        operands[2] = phases.ptr if phases is not None else NULL
        plan = wrap(graph, lib.ggml_custom_4d(
            graph.ctx, lib.GGML_TYPE_I8, oe_attention_plan_size(parts.ptr.ne[1], kv_heads), 1, 1, 1, operands,
            3 if phases is not None else 2, oe_attention_plan_op, 1, NULL))
        limit_index(graph, parts, cells.ptr.ne[0] + 1, (<Tensor>plan).ptr)
        graph.kept[key] = plan
    return plan


cdef _Params _params(Graph graph, const oe_attention_kernel *kernel, float scale, float cap, int threads):
    key = ("params", <size_t>kernel, scale, cap)
    params = graph.kept.get(key)
    if params is None:
        params = _Params()
        (<_Params>params).values = oe_attention_params(kernel, scale, cap, threads)
        graph.kept[key] = params
    return params


def paged_attention(Tensor q not None, Tensor k not None, Tensor v not None, Tensor parts not None,
                    Tensor cells not None, scale=1.0, *, softcap=0.0, Tensor sinks=None, Tensor phases=None,
                    str instructions=None):
    """softmax(softcap(q k * scale)) v over the cells listed for each row.

    q f32 [d, rows, heads], k [d, n, kv_heads], v [dv, n, kv_heads] (both of one `config.CacheType`), cells i32 [m]
    below n, parts i32 [2, rows]: row i sees cells[parts[i][0]:parts[i][1]], in that order, and gives 0 where that is
    empty. softcap and sinks f32 [heads] as for flash_attention. -> f32 [dv, heads, rows]. kv_heads divides heads. A
    row of the result has the same bits on every CPU, wherever its cells lie and whatever the other rows are.

    phases i32 [rows], 0 without them, shift the tiles of 64 cells in which a row is added up: row i's first cell is
    number phases[i] % 64 of its first tile. Neighbouring rows of a sliding window are computed together where these are
    the positions of their first cells. `instructions`: one of `paged_attention_instructions(k.dtype)`; None takes the
    last.
    """
    cdef float factor = finite(scale, "paged_attention", "scale"), cap = read_softcap(softcap, "paged_attention")
    if instructions is not None and instructions not in paged_attention_instructions(k.dtype):
        raise ShapeError(f"paged_attention: no {instructions!r} kernel for {k.dtype} here; "
                         f"there are {paged_attention_instructions(k.dtype)}")
    cdef Graph graph = graph_of(q, k, v)
    cdef lib.ggml_tensor *operands[6]
    cdef int64_t ne[4]
    cdef int64_t flat[4]
    cdef oe_attention_shape shape
    cdef int threads
    graph_of(q, parts, cells)
    _check_operands(q, k, v)
    _check_lists(parts, cells, q.ptr.ne[1])
    if phases is not None:
        graph_of(q, phases)
        _check_phases(phases, q.ptr.ne[1])
    if sinks is not None:
        graph_of(q, sinks)
        _check_sinks(sinks, q.ptr.ne[2])
    ne[0], ne[1], ne[2], ne[3] = v.ptr.ne[0], q.ptr.ne[2], q.ptr.ne[1], 1
    check_size(ne)
    threads = (<Computation>graph).backend.threads
    shape = oe_attention_shape(ne[2], ne[1], q.ptr.ne[0], ne[0], cells.ptr.ne[0])
    flat[0], flat[1], flat[2], flat[3] = oe_attention_size(&shape, threads), 1, 1, 1
    check_size(flat)
    plan = _plan(graph, parts, cells, phases, k.ptr.ne[2])
    params = _params(graph, _kernel(k.ptr.type, instructions or _FASTEST[<int>k.ptr.type]), factor, cap, threads)
    operands[0], operands[1], operands[2], operands[3], operands[4] = q.ptr, k.ptr, v.ptr, plan.ptr, cells.ptr
    operands[5] = sinks.ptr if sinks is not None else NULL
    result = lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, flat[0], 1, 1, 1, operands, 6 if sinks is not None else 5,
                                oe_attention_op, lib.GGML_N_TASKS_MAX, &params.values)
    limit_index(graph, cells, k.ptr.ne[1], result)
    return wrap(graph, lib.ggml_view_4d(graph.ctx, result, ne[0], ne[1], ne[2], 1, ne[0] * sizeof(float),
                                        ne[0] * ne[1] * sizeof(float), ne[0] * ne[1] * ne[2] * sizeof(float), 0))
