"""Products, softmax and attention."""

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.device.device cimport device_handle
from ollama_engine.ml.ops.operands import CACHE_TYPES
from ollama_engine.ml.ops.operands cimport check_routed, dense, finite, is_cache_type, read_softcap
from ollama_engine.ml.graph.row_check cimport limit_index
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, describe, graph_of, root_of, wrap
from ollama_engine.ml.graph.types cimport check_size, shape_to_ne, type_of, whole

# ggml reserves 8 bytes for each pair of a row and an expert, whether the row goes there or not.
cdef int64_t MAX_ROUTES = 1LL << 27


cdef int _check_matrix(str op, Tensor a) except -1:
    cdef lib.ggml_type kind = a.ptr.type
    if kind in (lib.GGML_TYPE_I32, lib.GGML_TYPE_I64, lib.GGML_TYPE_Q8_1, lib.GGML_TYPE_Q8_K) or not (
            kind in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16, lib.GGML_TYPE_BF16) or lib.ggml_is_quantized(kind)):
        raise ShapeError(f"{op}: {describe(a)} cannot be multiplied with")
    if a.ptr.nb[0] != lib.ggml_type_size(kind) or a.ptr.nb[0] > a.ptr.nb[1]:
        raise ShapeError(f"{op}: {describe(a)} must have contiguous rows and not be transposed; use ops.cont(...)")
    return 0


def mul_mat(Tensor a not None, Tensor b not None, bint precise=False):
    """Product with a transposed: a [n, m], b [n, k] -> f32 [m, k]; `a` is repeated over the further dimensions of b.

    `a` may be any weight type, `b` is f32. `precise` asks for f32 accumulation where a device offers less.
    """
    cdef Graph graph = graph_of(a, b, None, True)
    cdef lib.ggml_tensor *x = a.ptr
    cdef lib.ggml_tensor *y = b.ptr
    cdef int64_t ne[4]
    _check_matrix("mul_mat", a)
    if y.type != lib.GGML_TYPE_F32 or y.nb[0] != sizeof(float) or y.nb[0] > y.nb[1]:
        raise ShapeError(f"mul_mat: the right side must be f32 with contiguous rows, got {describe(b)}")
    if x.ne[0] != y.ne[0] or y.ne[2] % x.ne[2] or y.ne[3] % x.ne[3]:
        raise ShapeError(f"mul_mat: {describe(a)} and {describe(b)} do not fit: first dimensions must be equal, "
                         "third and fourth ones multiples")
    ne[0], ne[1], ne[2], ne[3] = x.ne[1], y.ne[1], y.ne[2], y.ne[3]
    check_size(ne)
    if a.owner.is_repacked:
        if x.ne[2] != 1 or y.ne[3] != 1:
            raise ShapeError(f"mul_mat: a repacked weight has 2 dimensions, the values up to 3; got {describe(a)} and "
                             f"{describe(b)}")
        # ggml's repacked kernel reads four rows at once and ignores their stride, so they must be dense.
        if y.nb[1] != y.ne[0] * sizeof(float):
            y = lib.ggml_cont(graph.ctx, y)
    result = lib.ggml_mul_mat(graph.ctx, x, y)
    if precise:
        lib.ggml_prec_set_acc(result, lib.GGML_PREC_F32)
    return wrap(graph, result)


def mul_mat_id(Tensor experts not None, Tensor b not None, Tensor ids not None):
    """One matrix for each row: experts [n, m, e], b [n, used or 1, k], ids i32 [used, k] -> f32 [m, used, k]."""
    cdef Graph graph = graph_of(experts, b, ids, True)
    cdef lib.ggml_tensor *x = experts.ptr
    cdef lib.ggml_tensor *y = b.ptr
    cdef lib.ggml_tensor *i = ids.ptr
    cdef int64_t ne[4]
    _check_matrix("mul_mat_id", experts)
    check_routed("mul_mat_id", experts, b, ids)
    if i.ne[0] > x.ne[2]:
        raise ShapeError(f"mul_mat_id: {i.ne[0]} experts for each row, but there are {x.ne[2]}")
    if i.ne[0] * i.ne[1] > MAX_ROUTES // x.ne[2]:
        raise ShapeError(f"mul_mat_id: {describe(ids)} times {x.ne[2]} experts is more than {MAX_ROUTES}")
    if experts.owner.is_repacked and not _distinct(i):
        raise ShapeError("mul_mat_id: with repacked experts the ids must be rows of top_k, which name no expert twice")
    ne[0], ne[1], ne[2], ne[3] = x.ne[1], i.ne[0], y.ne[2], 1
    check_size(ne)
    y = dense(graph, b, "mul_mat_id")
    result = lib.ggml_mul_mat_id(graph.ctx, x, y, i)
    limit_index(graph, ids, x.ne[2], result)
    return wrap(graph, result)


def add_id(Tensor a not None, Tensor rows not None, Tensor ids not None):
    """a [n, used, k] plus rows [n, e] that ids i32 [used, k] choose, f32: what mul_mat_id with biases needs."""
    cdef Graph graph = graph_of(a, rows, ids)
    cdef lib.ggml_tensor *x = a.ptr
    cdef lib.ggml_tensor *y = rows.ptr
    cdef lib.ggml_tensor *i = ids.ptr
    if x.type != lib.GGML_TYPE_F32 or y.type != lib.GGML_TYPE_F32 or x.nb[0] != sizeof(float) or \
            y.nb[0] != sizeof(float):
        raise ShapeError(f"add_id: both sides are f32 with contiguous rows, got {describe(a)} and {describe(rows)}")
    if i.type != lib.GGML_TYPE_I32 or i.nb[0] != sizeof(int):
        raise ShapeError(f"add_id: the ids must be i32 with contiguous rows, got {describe(ids)}")
    if x.ne[0] != y.ne[0] or y.ne[2] != 1 or y.ne[3] != 1 or x.ne[3] != 1 or i.ne[2] != 1 or i.ne[3] != 1 or \
            x.ne[1] != i.ne[0] or x.ne[2] != i.ne[1]:
        raise ShapeError(f"add_id: {describe(a)} takes rows [{x.ne[0]}, ..] and ids [{x.ne[1]}, {x.ne[2]}], "
                         f"got {describe(rows)} and {describe(ids)}")
    if graph.owns(root_of(y)):
        # ggml would write the sums over rows of the same shape, and read them again for the next sum.
        lib.ggml_set_output(root_of(y))
    result = lib.ggml_add_id(graph.ctx, dense(graph, a, "add_id"), y, i)
    limit_index(graph, ids, y.ne[1], result)
    return wrap(graph, result)


cdef bint _distinct(lib.ggml_tensor *ids) noexcept:
    """Whether each row of ids is part of one row of an argsort, and so names no expert twice.

    ggml's kernel for repacked experts has room for each token once per expert, and writes past the end otherwise.
    """
    cdef lib.ggml_tensor *root = root_of(ids)
    cdef size_t row = root.ne[0] * sizeof(int)
    if ids.nb[0] != sizeof(int) or ids.view_offs % row + ids.ne[0] * sizeof(int) > row:
        return False
    if ids.ne[1] > 1 and ids.nb[1] % row:
        return False
    if root.op == lib.GGML_OP_CONT:
        return _distinct(root.src[0])
    return root.op == lib.GGML_OP_ARGSORT


cdef int _check_mask(str op, Tensor mask, int64_t keys, int64_t queries, int64_t heads, int64_t batch) except -1:
    cdef lib.ggml_tensor *m = mask.ptr
    if not lib.ggml_is_contiguous(m):
        raise ShapeError(f"{op}: the mask must be contiguous, got {describe(mask)}")
    if m.ne[0] != keys or m.ne[1] < queries or heads % m.ne[2] or batch % m.ne[3]:
        raise ShapeError(f"{op}: the mask must be [{keys}, {queries} or more], got {describe(mask)}")
    return 0


cdef int _check_sinks(str op, Tensor sinks, int64_t heads) except -1:
    if sinks.ptr.type != lib.GGML_TYPE_F32 or sinks.ptr.ne[0] != heads or lib.ggml_nelements(sinks.ptr) != heads \
            or not lib.ggml_is_contiguous(sinks.ptr):
        raise ShapeError(f"{op}: sinks are f32 [{heads}], one for each head, got {describe(sinks)}")
    return 0


def softmax(Tensor a not None, Tensor mask=None, scale=1.0, Tensor sinks=None):
    """softmax(a * scale + mask) along rows; a f32 [keys, queries, heads], mask f32 or f16 [keys, queries or more].

    `sinks` f32 [heads] joins each row's denominator only.
    """
    cdef float factor = finite(scale, "softmax", "scale")
    cdef Graph graph = graph_of(a, mask, sinks)
    if a.ptr.type != lib.GGML_TYPE_F32 or not lib.ggml_is_contiguous(a.ptr):
        raise ShapeError(f"softmax: expected contiguous f32, got {describe(a)}")
    if mask is not None:
        if mask.ptr.type not in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16):
            raise ShapeError(f"softmax: the mask must be f32 or f16, got {describe(mask)}")
        _check_mask("softmax", mask, a.ptr.ne[0], a.ptr.ne[1], a.ptr.ne[2], a.ptr.ne[3])
    if sinks is not None:
        _check_sinks("softmax", sinks, a.ptr.ne[2])
    result = lib.ggml_soft_max_ext(graph.ctx, a.ptr, mask.ptr if mask is not None else NULL, factor, 0.0)
    if sinks is not None:
        # A view, because ggml may overwrite an operand of the result's shape, and reads the sinks after that.
        lib.ggml_soft_max_add_sinks(result, lib.ggml_reshape_4d(graph.ctx, sinks.ptr, sinks.ptr.ne[0], 1, 1, 1))
    return wrap(graph, result)


def flash_attention(Tensor q not None, Tensor k not None, Tensor v not None, Tensor mask=None, scale=1.0, *,
                    softcap=0.0, Tensor sinks=None):
    """softmax(softcap(q k * scale) + mask) v in one pass (Dao et al. 2022).

    q f32 [d, queries, heads], k [d, keys, kv_heads], v [dv, keys, kv_heads] (`config.CacheType`),
    mask f16 [keys, queries or more] -> f32 [dv, heads, queries]. kv_heads divides heads. softcap is 0 for none, or
    0.001 to 1e6. Raises ShapeError.
    """
    cdef float factor = finite(scale, "flash_attention", "scale")
    cdef float cap = read_softcap(softcap, "flash_attention")
    cdef Graph graph = graph_of(q, k, v)
    cdef int64_t ne[4]
    if mask is not None:
        graph_of(q, mask)
    if sinks is not None:
        graph_of(q, sinks)
    cdef lib.ggml_tensor *a = q.ptr
    cdef lib.ggml_tensor *b = k.ptr
    cdef lib.ggml_tensor *c = v.ptr
    _check_attention_operand(q)
    _check_attention_operand(k)
    _check_attention_operand(v)
    if a.type != lib.GGML_TYPE_F32 or not is_cache_type(b.type) or not is_cache_type(c.type):
        raise ShapeError(f"flash_attention: q is f32, k and v are {CACHE_TYPES}; "
                         f"got {describe(q)}, {describe(k)}, {describe(v)}")
    if a.ne[0] != b.ne[0] or b.ne[1] != c.ne[1] or a.ne[2] % b.ne[2] or a.ne[2] % c.ne[2] or b.ne[2] != c.ne[2]:
        raise ShapeError(f"flash_attention: {describe(q)}, {describe(k)} and {describe(v)} do not fit")
    if a.ne[3] != b.ne[3] or a.ne[3] != c.ne[3]:
        raise ShapeError("flash_attention: the fourth dimensions must be equal")
    ne[0], ne[1], ne[2], ne[3] = c.ne[0], a.ne[2], a.ne[1], a.ne[3]
    check_size(ne)
    if mask is not None:
        if mask.ptr.type != lib.GGML_TYPE_F16:
            raise ShapeError(f"flash_attention: the mask must be f16, got {describe(mask)}")
        _check_mask("flash_attention", mask, b.ne[1], a.ne[1], a.ne[2], a.ne[3])
    if sinks is not None:
        _check_sinks("flash_attention", sinks, a.ne[2])
    result = lib.ggml_flash_attn_ext(graph.ctx, a, b, c, mask.ptr if mask is not None else NULL, factor, 0.0, cap)
    lib.ggml_prec_set_acc(result, lib.GGML_PREC_F32)
    if sinks is not None:
        lib.ggml_flash_attn_ext_add_sinks(result, sinks.ptr)
    return wrap(graph, result)


cdef int _check_attention_operand(Tensor t) except -1:
    if t.ptr.nb[0] != lib.ggml_type_size(t.ptr.type) or t.ptr.nb[0] > t.ptr.nb[1]:
        raise ShapeError(f"flash_attention: {describe(t)} must have contiguous rows; use ops.cont(...)")
    return 0


def supports_flash_attention(device, key_dim, value_dim, str dtype not None):
    """Whether a `Device` has a one-pass attention kernel for heads of this size and keys of this type."""
    cdef lib.ggml_type kind = type_of(dtype)
    cdef lib.ggml_init_params params
    cdef int64_t q[4]
    cdef int64_t k[4]
    cdef int64_t v[4]
    cdef int64_t m[4]
    if not is_cache_type(kind):
        return False
    if any([whole(dim) % lib.ggml_blck_size(kind) for dim in (key_dim, value_dim)]):
        return False
    shape_to_ne((key_dim, 1, 1), lib.GGML_TYPE_F32, q)
    shape_to_ne((key_dim, 256, 1), kind, k)
    shape_to_ne((value_dim, 256, 1), kind, v)
    shape_to_ne((256, 1), lib.GGML_TYPE_F16, m)
    params.mem_size = lib.ggml_tensor_overhead() * 8
    params.mem_buffer = NULL
    params.no_alloc = True
    handle = device_handle(device)
    cdef lib.ggml_context *ctx = lib.ggml_init(params)
    attention = lib.ggml_flash_attn_ext(
        ctx, lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F32, 4, q), lib.ggml_new_tensor(ctx, kind, 4, k),
        lib.ggml_new_tensor(ctx, kind, 4, v), lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F16, 4, m), 1.0, 0.0, 0.0)
    supported = lib.ggml_backend_dev_supports_op(handle, attention)
    lib.ggml_free(ctx)
    return bool(supported)
