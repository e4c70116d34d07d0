"""Rotary positions, with one position for each row or with several axes."""

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ops.operands cimport dense, finite
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, describe, graph_of, wrap
from ollama_engine.ml.graph.types cimport first_of, whole

cdef dict _MODES = {"norm": lib.GGML_ROPE_TYPE_NORMAL, "neox": lib.GGML_ROPE_TYPE_NEOX}
cdef dict _MULTI_MODES = {
    "sections": lib.GGML_ROPE_TYPE_MROPE, "interleaved": lib.GGML_ROPE_TYPE_IMROPE, "vision": lib.GGML_ROPE_TYPE_VISION,
}  # fmt: skip
cdef int64_t AXES = lib.GGML_MROPE_SECTIONS


cdef struct Angles:
    int n_dims
    int trained
    float base
    float squeeze
    float ext
    float attn
    float fast
    float slow


cdef Angles _angles(str op, object n_dims, object freq_base, object freq_scale, object n_ctx_orig, object ext_factor,
                    object attn_factor, object beta_fast, object beta_slow) except *:
    """The numbers that define the angles, checked; n_dims only for its range of numbers."""
    cdef double base = finite(freq_base, op, "freq_base"), squeeze = finite(freq_scale, op, "freq_scale")
    cdef double ext = finite(ext_factor, op, "ext_factor"), attn = finite(attn_factor, op, "attn_factor")
    cdef double fast = finite(beta_fast, op, "beta_fast"), slow = finite(beta_slow, op, "beta_slow")
    cdef int64_t turning = whole(n_dims), trained = whole(n_ctx_orig)
    if not base > 1 or not 0 <= trained < 1 << 31:
        raise ShapeError(f"{op}: freq_base must be above 1 and n_ctx_orig not negative, got {base}, {trained}")
    if ext != 0 and (trained < 1 or not squeeze > 0 or not fast > 0 or not slow > 0):
        raise ShapeError(f"{op}: YaRN (ext_factor not 0) needs n_ctx_orig, freq_scale and both betas above 0")
    if not 2 <= turning < 1 << 31 or turning % 2:
        raise ShapeError(f"{op}: n_dims is even and at least 2, got {turning}")
    return Angles(turning, trained, base, squeeze, ext, attn, fast, slow)


cdef int _check_heads(str op, Tensor x, int64_t turning) except -1:
    cdef lib.ggml_tensor *a = x.ptr
    if a.type not in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16) or a.nb[0] != lib.ggml_type_size(a.type):
        raise ShapeError(f"{op}: expected f32 or f16 with contiguous rows, got {describe(x)}")
    if turning > a.ne[0] or a.ne[0] % 2:
        raise ShapeError(f"{op}: n_dims is even and 2 to {a.ne[0]} (an even head size), got {turning}")
    return 0


cdef lib.ggml_tensor *_factors(str op, Graph graph, Tensor factors, int64_t head, int64_t turning) except? NULL:
    """The divisors of the angles, as many as ggml reads: one for every pair of the head, also of pairs that stay."""
    if factors is None:
        return NULL
    cdef lib.ggml_tensor *f = factors.ptr
    if f.type != lib.GGML_TYPE_F32 or f.ne[0] < turning // 2 or lib.ggml_nelements(f) != f.ne[0] \
            or not lib.ggml_is_contiguous(f):
        raise ShapeError(f"{op}: factors are f32 [{turning // 2}], got {describe(factors)}")
    if f.ne[0] >= head // 2:
        return f
    return lib.ggml_repeat_4d(graph.ctx, dense(graph, factors, op), (head // 2 + f.ne[0] - 1) // f.ne[0] * f.ne[0],
                              1, 1, 1)


def rope(Tensor x not None, Tensor positions not None, n_dims, *, str mode not None="norm", offset=0,
         Tensor factors=None, freq_base=10000.0, freq_scale=1.0, n_ctx_orig=0, ext_factor=0.0, attn_factor=1.0,
         beta_fast=32.0, beta_slow=1.0):
    """Rotary position embedding (Su et al. 2021) of x [head_dim, heads, n] at positions i32 [n].

    `n_dims` of each head turn, from dimension `offset` (even) on: adjacent pairs with mode "norm", halves with "neox".
    `factors` f32 [n_dims / 2] divide the angles. freq_scale, ext_factor, attn_factor and the betas are YaRN's (Peng et
    al. 2023).
    """
    cdef int64_t start = whole(offset)
    cdef Angles t = _angles("rope", n_dims, freq_base, freq_scale, n_ctx_orig, ext_factor, attn_factor, beta_fast,
                            beta_slow)
    found = _MODES.get(mode)
    if found is None:
        raise ShapeError(f"rope: mode is norm or neox, got {mode!r}")
    cdef int kind = found
    cdef Graph graph = graph_of(x, positions, factors)
    cdef lib.ggml_tensor *a = x.ptr
    cdef lib.ggml_tensor *p = positions.ptr
    _check_heads("rope", x, t.n_dims)
    if start < 0 or start % 2 or start > a.ne[0] - t.n_dims:
        raise ShapeError(f"rope: offset is even and 0 to {a.ne[0] - t.n_dims}, got {offset}")
    if p.type != lib.GGML_TYPE_I32 or p.ne[0] != a.ne[2] or lib.ggml_nelements(p) != p.ne[0] \
            or not lib.ggml_is_contiguous(p):
        raise ShapeError(f"rope: {describe(x)} takes i32 positions [{a.ne[2]}], got {describe(positions)}")
    cdef lib.ggml_tensor *f = _factors("rope", graph, factors, a.ne[0], t.n_dims)
    result = lib.ggml_rope_ext(graph.ctx, a, p, f, t.n_dims, kind, t.trained, t.base, t.squeeze, t.ext, t.attn, t.fast,
                               t.slow)
    return wrap(graph, lib.ggml_rope_set_offset(result, start))


cdef int _read_sections(object sections, int64_t pairs, bint ordered, int *out) except -1:
    """The four section sizes. ggml divides by their sum, and needs a pair in one of the first three."""
    cdef tuple given = first_of(sections, AXES + 1)
    cdef int64_t total = 0, size
    cdef int i
    if not 1 <= len(given) <= AXES:
        raise ShapeError(f"rope_multi: sections are 1 to {AXES} numbers of pairs, one for each axis, got {given}")
    for i in range(AXES):
        size = whole(given[i]) if i < len(given) else 0
        if not 0 <= size <= pairs:
            raise ShapeError(f"rope_multi: sections are 0 to {pairs} pairs each, got {given}")
        out[i] = size
        total += size
        # In mode vision ggml begins the angles of an axis anew where its section begins, and takes the first such axis.
        if ordered and i > 0 and size > 0 and out[i - 1] == 0:
            raise ShapeError(f"rope_multi: with mode vision, sections of 0 pairs come last, got {given}")
    if total > pairs or total == out[AXES - 1]:
        raise ShapeError(f"rope_multi: sections sum up to 1 to {pairs} pairs, not all of the last axis, got {given}")
    return 0


def rope_multi(Tensor x not None, Tensor positions not None, n_dims, sections, *, str mode not None="sections",
               Tensor factors=None, freq_base=10000.0, freq_scale=1.0, n_ctx_orig=0, ext_factor=0.0, attn_factor=1.0,
               beta_fast=32.0, beta_slow=1.0):
    """Rotary position embedding with several axes (M-RoPE, Wang et al. 2024) of x [head_dim, heads, n].

    `positions` i32 [n, 4] are one row for each axis: time, height, width and one more. Pairs are halves of the first
    n_dims, as with rope's "neox", and `sections` (up to 4 numbers of pairs) say which axis turns which:
    - "sections": the first sections[0] pairs turn by time, the next sections[1] by height, and so on; after the last
      section the first begins again. Angles decrease from pair to pair as with one axis.
    - "interleaved": time, height and width in turn, each for as many rounds as its section says; pairs that none takes
      turn by the fourth.
    - "vision": like "sections", and the angles begin anew in every section. n_dims is half of head_dim, and pairs are
      halves of the whole head: sections (h, w) of head_dim / 4 pairs each with positions (y, x) rotate patches.
    Other options: `rope`. Source: ggml's ggml_rope_multi.
    """
    cdef Angles t = _angles("rope_multi", n_dims, freq_base, freq_scale, n_ctx_orig, ext_factor, attn_factor,
                            beta_fast, beta_slow)
    cdef int sizes[4]
    cdef int64_t pairs = t.n_dims if mode == "vision" else t.n_dims // 2
    found = _MULTI_MODES.get(mode)
    if found is None:
        raise ShapeError(f"rope_multi: mode is {', '.join(_MULTI_MODES)}; got {mode!r}")
    cdef int kind = found
    _read_sections(sections, pairs, mode == "vision", sizes)
    cdef Graph graph = graph_of(x, positions, factors)
    cdef lib.ggml_tensor *a = x.ptr
    cdef lib.ggml_tensor *p = positions.ptr
    _check_heads("rope_multi", x, t.n_dims)
    if kind == lib.GGML_ROPE_TYPE_VISION and t.n_dims * 2 != a.ne[0]:
        raise ShapeError(f"rope_multi: mode vision turns whole heads, so n_dims is half of {a.ne[0]}, got {t.n_dims}")
    if p.type != lib.GGML_TYPE_I32 or p.ne[0] != a.ne[2] or p.ne[1] != AXES or lib.ggml_nelements(p) != p.ne[0] * AXES \
            or not lib.ggml_is_contiguous(p):
        raise ShapeError(f"rope_multi: {describe(x)} takes i32 positions [{a.ne[2]}, {AXES}], got "
                         f"{describe(positions)}")
    cdef lib.ggml_tensor *f = _factors("rope_multi", graph, factors, a.ne[0], t.n_dims)
    p = lib.ggml_reshape_4d(graph.ctx, p, p.ne[0] * AXES, 1, 1, 1)
    return wrap(graph, lib.ggml_rope_multi(graph.ctx, a, p, f, t.n_dims, sizes, kind, t.trained, t.base, t.squeeze,
                                           t.ext, t.attn, t.fast, t.slow))
