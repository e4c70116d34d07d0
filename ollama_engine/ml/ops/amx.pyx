"""Products and attention of many rows with AMX, with our own kernels (csrc/kernels/amx/amx.h), for vision towers.

They are ggml custom operations, which only ggml's CPU backend runs: nodes that turn operands into the order of AMX's
tiles, and one that computes. `parts` is 2 for the precision of float32, in practice, and 1 for that of bfloat16.
"""

from cython cimport final
from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.libamx cimport (
    OE_AMX_COLUMNS, OE_AMX_GELU, OE_AMX_K, OE_AMX_LARGEST_HEAD, OE_AMX_NONE, OE_AMX_QUICK_GELU, OE_AMX_ROWS,
    OE_AMX_TILE, oe_amx_activation, oe_amx_allowed, oe_amx_attention_op, oe_amx_pack_op, oe_amx_pack_transposed_op,
    oe_amx_padded, oe_amx_params, oe_amx_product_op, oe_amx_split_op,
)
from ollama_engine.ml.ops.operands cimport dense_f32, finite, need_f32
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, alive, describe, graph_of, wrap
from ollama_engine.ml.graph.types cimport check_size

cdef dict _ACTIVATIONS = {"none": OE_AMX_NONE, "gelu": OE_AMX_GELU, "gelu_quick": OE_AMX_QUICK_GELU}


@final
cdef class _Params:
    """Parameters of custom operations. The graph keeps it alive, since ggml holds only a pointer."""

    cdef oe_amx_params values


def amx_allowed():
    """Whether the CPU has AMX with bfloat16, and the system lets this process use it."""
    return oe_amx_allowed()


def amx_takes(Tensor weight not None):
    """Whether `amx_product` reads weights of this type and shape: floats, or types in blocks of 32."""
    alive(weight)
    cdef lib.ggml_tensor *w = weight.ptr
    cdef bint dense = lib.ggml_is_contiguous(w) and w.ne[2] == 1 and w.ne[3] == 1
    # ggml turns no integers and no f64 into floats, and those in between (q8_1) neither.
    cdef bint readable = w.type == lib.GGML_TYPE_F32 or lib.ggml_get_type_traits(w.type).to_float != NULL
    return dense and readable and lib.ggml_blck_size(w.type) in (1, 32)


def amx_product(Tensor weight not None, Tensor x not None, Tensor bias=None, *, int parts=2,
                str activation not None="none"):
    """activation(weight x + bias): weight [k, m], x f32 [k, n], bias f32 [m] -> f32 [m, n].

    Activations: "none", "gelu" (the tanh form) and "gelu_quick". Raises ShapeError for operands that do not fit, and
    where AMX is not allowed.
    """
    cdef Graph graph = graph_of(x)
    cdef lib.ggml_tensor *operand = dense_f32(graph, x, "amx_product")
    cdef lib.ggml_tensor *args[3]
    cdef int64_t ne[4]
    _check(parts)
    if not amx_takes(weight):
        raise ShapeError(f"amx_product: the weight is a matrix of floats or of blocks of 32, got {describe(weight)}")
    if weight.ptr.ne[0] != operand.ne[0] or operand.ne[2] != 1 or operand.ne[3] != 1:
        raise ShapeError(f"amx_product: {describe(weight)} and {describe(x)} do not fit")
    if activation not in _ACTIVATIONS:
        raise ShapeError(f"amx_product: activation is {', '.join(_ACTIVATIONS)}, got {activation!r}")
    if bias is not None:
        need_f32(bias, "amx_product")
        if not lib.ggml_is_contiguous(bias.ptr) or lib.ggml_nelements(bias.ptr) != weight.ptr.ne[1]:
            raise ShapeError(f"amx_product: the bias has {weight.ptr.ne[1]} numbers, got {describe(bias)}")
    ne[0], ne[1], ne[2], ne[3] = weight.ptr.ne[1], operand.ne[1], 1, 1
    check_size(ne)
    cdef Tensor rows = _rows(graph, x, parts)
    cdef Tensor tiles = _tiles(graph, weight, parts, False)
    args[0], args[1] = rows.ptr, tiles.ptr
    if bias is not None:
        args[2] = bias.ptr
    cdef _Params params = _params(graph, parts, <oe_amx_activation><int>_ACTIVATIONS[activation], 1.0, 0, 0)
    return wrap(graph, lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, ne[0], ne[1], 1, 1, args,
                                          2 if bias is None else 3, oe_amx_product_op, lib.GGML_N_TASKS_MAX,
                                          &params.values))


def amx_attention(Tensor q not None, Tensor k not None, Tensor v not None, scale=1.0, *, int parts=2):
    """softmax(q k * scale) v: q f32 [d, queries, heads], k [d, keys, heads], v [dv, keys, heads] ->
    f32 [dv, heads, queries].

    Heads are of up to 256 numbers, keys have as many as queries, and scale is above 0. Raises ShapeError for operands
    that do not fit, and where AMX is not allowed.
    """
    cdef float factor = finite(scale, "amx_attention", "scale")
    if factor <= 0:  # the kernel takes the largest product for the largest score, and -inf for the score of no key
        raise ShapeError(f"amx_attention: scale is above 0, got {scale}")
    cdef Graph graph = graph_of(q, k, v)
    cdef lib.ggml_tensor *args[3]
    cdef lib.ggml_tensor *a = q.ptr
    cdef lib.ggml_tensor *b = k.ptr
    cdef lib.ggml_tensor *c = v.ptr
    cdef int64_t ne[4]
    _check(parts)
    for t in (q, k, v):
        _check_rows(t)
    if (a.ne[0] != b.ne[0] or b.ne[1] != c.ne[1] or a.ne[2] != b.ne[2] or a.ne[2] != c.ne[2]
            or max(a.ne[0], c.ne[0]) > OE_AMX_LARGEST_HEAD):
        raise ShapeError(f"amx_attention: {describe(q)}, {describe(k)} and {describe(v)} do not fit; heads are of up "
                         f"to {OE_AMX_LARGEST_HEAD} numbers")
    ne[0], ne[1], ne[2], ne[3] = c.ne[0], a.ne[2], a.ne[1], 1
    check_size(ne)
    cdef Tensor rows = _rows(graph, q, parts)
    cdef Tensor keys = _tiles(graph, k, parts, False)
    cdef Tensor values = _tiles(graph, v, parts, True)
    args[0], args[1], args[2] = rows.ptr, keys.ptr, values.ptr
    cdef _Params params = _params(graph, parts, OE_AMX_NONE, factor, a.ne[0], b.ne[1])
    return wrap(graph, lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, ne[0], ne[1], ne[2], 1, args, 3,
                                          oe_amx_attention_op, lib.GGML_N_TASKS_MAX, &params.values))


cdef int _check(int parts) except -1:
    if not oe_amx_allowed():
        raise ShapeError("this CPU has no AMX, or the system does not allow it")
    if parts not in (1, 2):
        raise ShapeError(f"parts is 1 or 2, got {parts}")
    return 0


cdef int _check_rows(Tensor t) except -1:
    need_f32(t, "amx_attention")
    if t.ptr.nb[0] != 4 or t.ptr.nb[0] > t.ptr.nb[1] or t.ptr.ne[3] != 1:
        raise ShapeError(f"amx_attention: {describe(t)} must have contiguous rows; use ops.cont(...)")
    return 0


cdef Tensor _rows(Graph graph, Tensor x, int parts):
    """The "rows" of f32 [k, n, matrices], made once for all products that read it."""
    key = ("amx rows", <size_t>x.ptr, parts)
    rows = graph.kept.get(key)
    if rows is None:
        params = _params(graph, parts, OE_AMX_NONE, 1.0, 0, 0)
        rows = wrap(graph, lib.ggml_custom_4d(
            graph.ctx, lib.GGML_TYPE_BF16, oe_amx_padded(x.ptr.ne[0], OE_AMX_K),
            oe_amx_padded(x.ptr.ne[1], OE_AMX_ROWS), x.ptr.ne[2], parts, &x.ptr, 1, oe_amx_split_op,
            lib.GGML_N_TASKS_MAX, &params.values))
        graph.kept[key] = rows
    return rows


cdef Tensor _tiles(Graph graph, Tensor x, int parts, bint transposed):
    """The "tiles" of [k, columns, matrices]; of [columns, k, matrices] where `transposed`."""
    cdef int64_t k = x.ptr.ne[1 if transposed else 0]
    cdef int64_t columns = oe_amx_padded(x.ptr.ne[0 if transposed else 1], OE_AMX_COLUMNS)
    cdef int64_t k_tiles = oe_amx_padded(k, OE_AMX_K) // OE_AMX_K
    cdef _Params params = _params(graph, parts, OE_AMX_NONE, 1.0, 0, 0)
    return wrap(graph, lib.ggml_custom_4d(
        graph.ctx, lib.GGML_TYPE_BF16, OE_AMX_TILE, k_tiles, columns // 16 * x.ptr.ne[2], parts, &x.ptr, 1,
        oe_amx_pack_transposed_op if transposed else oe_amx_pack_op, lib.GGML_N_TASKS_MAX, &params.values))


cdef _Params _params(Graph graph, int parts, oe_amx_activation activation, float scale, int64_t key_dim,
                     int64_t n_keys):
    key = ("amx", parts, <int>activation, scale, key_dim, n_keys)
    params = graph.kept.get(key)
    if params is None:
        params = _Params()
        (<_Params>params).values = oe_amx_params(parts, activation, scale, key_dim, n_keys)
        graph.kept[key] = params
    return params
