"""Products, rotary positions, softmax and attention."""

import math

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.tensor cimport Graph, Tensor, describe, graph_of, wrap

_ROPE_MODES = {"norm": 0, "neox": 2}


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
    cdef Graph graph = graph_of(a, b)
    cdef lib.ggml_tensor *x = a.ptr
    cdef lib.ggml_tensor *y = b.ptr
    _check_matrix("mul_mat", a)
    if y.type != lib.GGML_TYPE_F32 or y.nb[0] != sizeof(float) or y.nb[0] > y.nb[1]:
        raise ShapeError(f"mul_mat: the right side must be f32 with contiguous rows, got {describe(b)}")
    if x.ne[0] != y.ne[0] or y.ne[2] % x.ne[2] or y.ne[3] % x.ne[3]:
        raise ShapeError(f"mul_mat: {describe(a)} and {describe(b)} do not fit: first dimensions must be equal, "
                         "third and fourth ones multiples")
    result = lib.ggml_mul_mat(graph.ctx, x, y)
    if precise:
        lib.ggml_prec_set_acc(result, lib.GGML_PREC_F32)
    return wrap(graph, result)


def mul_mat_id(Tensor experts not None, Tensor b not None, Tensor ids not None):
    """One matrix for each row: experts [n, m, e], b [n, used or 1, k], ids i32 [used, k] -> f32 [m, used, k]."""
    cdef Graph graph = graph_of(experts, b, ids)
    cdef lib.ggml_tensor *x = experts.ptr
    cdef lib.ggml_tensor *y = b.ptr
    cdef lib.ggml_tensor *i = ids.ptr
    _check_matrix("mul_mat_id", experts)
    if y.type != lib.GGML_TYPE_F32 or not lib.ggml_is_contiguous(y):
        raise ShapeError(f"mul_mat_id: the values must be contiguous f32, got {describe(b)}")
    if i.type != lib.GGML_TYPE_I32 or i.nb[0] != sizeof(int):
        raise ShapeError(f"mul_mat_id: the ids must be i32 with contiguous rows, got {describe(ids)}")
    if x.ne[3] != 1 or y.ne[3] != 1 or i.ne[2] != 1 or i.ne[3] != 1:
        raise ShapeError("mul_mat_id: experts and values have up to 3 dimensions, ids 2; "
                         f"got {describe(experts)}, {describe(b)}, {describe(ids)}")
    if x.ne[0] != y.ne[0] or i.ne[1] != y.ne[2] or i.ne[0] % y.ne[1]:
        raise ShapeError(f"mul_mat_id: {describe(experts)}, {describe(b)} and ids {describe(ids)} do not fit")
    if not lib.ggml_is_contiguous(x):
        raise ShapeError(f"mul_mat_id: the experts {describe(experts)} must be contiguous")
    if i.ne[0] > x.ne[2]:
        raise ShapeError(f"mul_mat_id: {i.ne[0]} experts for each row, but there are {x.ne[2]}")
    graph.limit_index(ids, x.ne[2])
    return wrap(graph, lib.ggml_mul_mat_id(graph.ctx, x, y, i))


def rope(Tensor x not None, Tensor positions not None, int n_dims, *, str mode="norm", Tensor factors=None,
         freq_base=10000.0, freq_scale=1.0, int n_ctx_orig=0, ext_factor=0.0, attn_factor=1.0, beta_fast=32.0,
         beta_slow=1.0):
    """Rotary position embedding (Su et al. 2021) of x [head_dim, heads, n] at positions i32 [n].

    The first `n_dims` of each head turn: adjacent pairs with mode "norm", halves with "neox". `factors` f32
    [n_dims / 2] divide the angles. freq_scale, ext_factor, attn_factor and the betas are YaRN's (Peng et al. 2023).
    """
    cdef Graph graph = graph_of(x, positions, factors)
    cdef lib.ggml_tensor *a = x.ptr
    cdef lib.ggml_tensor *p = positions.ptr
    if mode not in _ROPE_MODES:
        raise ShapeError(f"rope: mode is norm or neox, got {mode!r}")
    if a.type not in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16) or a.nb[0] != lib.ggml_type_size(a.type):
        raise ShapeError(f"rope: expected f32 or f16 with contiguous rows, got {describe(x)}")
    if p.type != lib.GGML_TYPE_I32 or p.ne[0] != a.ne[2] or lib.ggml_nelements(p) != p.ne[0] \
            or not lib.ggml_is_contiguous(p):
        raise ShapeError(f"rope: {describe(x)} takes i32 positions [{a.ne[2]}], got {describe(positions)}")
    if not 2 <= n_dims <= a.ne[0] or n_dims % 2 or a.ne[0] % 2:
        raise ShapeError(f"rope: n_dims is even and 2 to {a.ne[0]} (an even head size), got {n_dims}")
    if factors is not None and (factors.ptr.type != lib.GGML_TYPE_F32 or factors.ptr.ne[0] < n_dims // 2
                                or not lib.ggml_is_contiguous(factors.ptr)):
        raise ShapeError(f"rope: factors are f32 [{n_dims // 2}], got {describe(factors)}")
    numbers = [float(v) for v in (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)]
    if not all(math.isfinite(v) for v in numbers) or not numbers[0] > 1 or n_ctx_orig < 0:
        raise ShapeError(f"rope: the frequency numbers must be finite and freq_base above 1, got {numbers}")
    if numbers[2] != 0 and (n_ctx_orig < 1 or not numbers[1] > 0 or not min(numbers[4:]) > 0):
        raise ShapeError("rope: YaRN (ext_factor not 0) needs n_ctx_orig, freq_scale and both betas above 0")
    return wrap(graph, lib.ggml_rope_ext(
        graph.ctx, a, p, factors.ptr if factors is not None else NULL, n_dims, _ROPE_MODES[mode], n_ctx_orig,
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]))


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
    cdef Graph graph = graph_of(a, mask, sinks)
    if a.ptr.type != lib.GGML_TYPE_F32 or not lib.ggml_is_contiguous(a.ptr):
        raise ShapeError(f"softmax: expected contiguous f32, got {describe(a)}")
    if not math.isfinite(scale):
        raise ShapeError(f"softmax: scale must be finite, got {scale}")
    if mask is not None:
        if mask.ptr.type not in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16):
            raise ShapeError(f"softmax: the mask must be f32 or f16, got {describe(mask)}")
        _check_mask("softmax", mask, a.ptr.ne[0], a.ptr.ne[1], a.ptr.ne[2], a.ptr.ne[3])
    if sinks is not None:
        _check_sinks("softmax", sinks, a.ptr.ne[2])
    result = lib.ggml_soft_max_ext(graph.ctx, a.ptr, mask.ptr if mask is not None else NULL, scale, 0.0)
    if sinks is not None:
        lib.ggml_soft_max_add_sinks(result, sinks.ptr)
    return wrap(graph, result)


_KEY_TYPES = (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16, lib.GGML_TYPE_BF16, lib.GGML_TYPE_Q8_0, lib.GGML_TYPE_Q4_0)


def flash_attention(Tensor q not None, Tensor k not None, Tensor v not None, Tensor mask=None, scale=1.0, *,
                    softcap=0.0, Tensor sinks=None):
    """softmax(softcap(q k * scale) + mask) v in one pass (Dao et al. 2022).

    q f32 [d, queries, heads], k [d, keys, kv_heads], v [dv, keys, kv_heads] (f32, f16, bf16, q8_0, q4_0),
    mask f16 [keys, queries or more] -> f32 [dv, heads, queries]. kv_heads divides heads.
    """
    cdef Graph graph = graph_of(q, k, v)
    if mask is not None:
        graph_of(q, mask)
    if sinks is not None:
        graph_of(q, sinks)
    cdef lib.ggml_tensor *a = q.ptr
    cdef lib.ggml_tensor *b = k.ptr
    cdef lib.ggml_tensor *c = v.ptr
    for t in (q, k, v):
        _check_attention_operand(<Tensor>t)
    if a.type != lib.GGML_TYPE_F32 or b.type not in _KEY_TYPES or c.type not in _KEY_TYPES:
        raise ShapeError("flash_attention: q is f32, k and v are f32, f16, bf16, q8_0 or q4_0; "
                         f"got {describe(q)}, {describe(k)}, {describe(v)}")
    if a.ne[0] != b.ne[0] or b.ne[1] != c.ne[1] or a.ne[2] % b.ne[2] or a.ne[2] % c.ne[2] or b.ne[2] != c.ne[2]:
        raise ShapeError(f"flash_attention: {describe(q)}, {describe(k)} and {describe(v)} do not fit")
    if a.ne[3] != b.ne[3] or a.ne[3] != c.ne[3]:
        raise ShapeError("flash_attention: the fourth dimensions must be equal")
    if not math.isfinite(scale) or not math.isfinite(softcap) or softcap < 0:
        raise ShapeError(f"flash_attention: scale and softcap must be finite, got {scale} and {softcap}")
    if mask is not None:
        if mask.ptr.type != lib.GGML_TYPE_F16:
            raise ShapeError(f"flash_attention: the mask must be f16, got {describe(mask)}")
        _check_mask("flash_attention", mask, b.ne[1], a.ne[1], a.ne[2], a.ne[3])
    if sinks is not None:
        _check_sinks("flash_attention", sinks, a.ne[2])
    result = lib.ggml_flash_attn_ext(graph.ctx, a, b, c, mask.ptr if mask is not None else NULL, scale, 0.0, softcap)
    lib.ggml_prec_set_acc(result, lib.GGML_PREC_F32)
    if sinks is not None:
        lib.ggml_flash_attn_ext_add_sinks(result, sinks.ptr)
    return wrap(graph, result)


cdef int _check_attention_operand(Tensor t) except -1:
    if t.ptr.nb[0] != lib.ggml_type_size(t.ptr.type) or t.ptr.nb[0] > t.ptr.nb[1]:
        raise ShapeError(f"flash_attention: {describe(t)} must have contiguous rows; use ops.cont(...)")
    return 0
