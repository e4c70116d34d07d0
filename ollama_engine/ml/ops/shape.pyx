"""Views, copies and rows: operations that move values and change at most their type."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.context cimport Context
from ollama_engine.ml.ops.operands import CACHE_TYPES, on_cpu_alone
from ollama_engine.ml.ops.operands cimport dense, dense_f32, is_cache_type
from ollama_engine.ml.graph.row_check cimport limit_index
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, alive, describe, graph_of, root_of, wrap
from ollama_engine.ml.graph.types cimport check_size, first_of, shape_to_ne, type_of, whole

cdef extern from "kernels/iq4_nl_rows.h" nogil:
    void oe_iq4_nl_rows_op(lib.ggml_tensor *dst, int ith, int nth, void *unused) noexcept

cdef int64_t FAR = 1LL << 48  # larger than any real offset or stride; sums of a few still fit into 64 bits


cdef Graph _graph(Tensor t, Context ctx):
    """The graph for a view of `t`: its own, or `ctx` where `t` is a weight or cache storage."""
    alive(t)
    if ctx is None:
        return graph_of(t)
    if t.owner.is_graph:
        if t.owner is not ctx:
            raise ShapeError("the tensor belongs to another context than the one given")
        return graph_of(t)
    if t.owner.is_repacked:
        raise ShapeError(f"view: {describe(t)} is repacked: only mul_mat and mul_mat_id can read it")
    ctx.charge(2)
    ctx.use_stored(t)
    return ctx


def view(Tensor t not None, shape, strides=None, offset=0, Context ctx=None):
    """A window into the memory of `t`: `shape` elements, from byte `offset` on.

    `strides` are the bytes between elements of dimensions 1, 2 and 3 as far as `shape` has them; None means dense.
    `ctx` names the graph when `t` is a weight or cache storage. Raises ShapeError if any element lies outside of `t`,
    or if so many overlap that `t` has fewer elements than the view.
    """
    cdef int64_t ne[4]
    cdef size_t nb[4]
    cdef int64_t steps[4]
    cdef bint sane, whole_units
    cdef tuple dims = first_of(shape, 5), given = () if strides is None else first_of(strides, 4)
    cdef Py_ssize_t i, n_given = len(given)
    cdef int64_t start = whole(offset)
    for i in range(n_given):
        steps[i] = whole(given[i])
    alive(t)
    shape_to_ne(dims, t.ptr.type, ne)
    if strides is not None and n_given != len(dims) - 1:
        raise ShapeError(f"view: shape {dims} needs {len(dims) - 1} strides, got {given}")
    cdef int64_t unit = lib.ggml_type_size(t.ptr.type)
    sane, whole_units = 0 <= start < FAR, start % unit == 0
    for i in range(n_given):
        sane, whole_units = sane and 0 < steps[i] < FAR, whole_units and steps[i] % unit == 0
    if not sane:
        raise ShapeError(f"view: offset and strides are bytes in a sane range, got {start} and {given}")
    if not whole_units:
        raise ShapeError(f"view: offset and strides are multiples of {unit} bytes, got {start} and {given}")
    nb[0], nb[1] = unit, lib.ggml_row_size(t.ptr.type, ne[0])
    for i in range(1, 4):
        if i <= n_given:
            nb[i] = steps[i - 1]
        elif i > 1:
            nb[i] = nb[i - 1] * ne[i - 1]
    if not lib.ggml_is_contiguous(t.ptr):
        raise ShapeError(f"view: {describe(t)} is not contiguous; view its source, or ops.cont(...) of it")
    if not _lies_inside(t.ptr, ne, nb, start):
        raise ShapeError(f"view: shape {dims} with strides {given} from byte {start} needs "
                         f"{_bytes_needed(t.ptr, ne, nb, start)} bytes, but {describe(t)} has {lib.ggml_nbytes(t.ptr)}")
    cdef Graph graph = _graph(t, ctx)
    return wrap(graph, lib.ggml_view_4d(graph.ctx, t.ptr, ne[0], ne[1], ne[2], ne[3], nb[1], nb[2], nb[3], start))


cdef bint _lies_inside(lib.ggml_tensor *t, const int64_t *ne, const size_t *nb, int64_t start) noexcept:
    """Whether `t` has all elements of a view, and at least as many."""
    cdef int64_t size = lib.ggml_nbytes(t), row = lib.ggml_row_size(t.type, ne[0]), end = start + row
    cdef int i
    for i in range(1, 4):
        if ne[i] > 1:
            if nb[i] > <size_t>(size // (ne[i] - 1)):  # a division: the product could overflow 64 bits
                return False
            end += (ne[i] - 1) * nb[i]
    return end <= size and start + row * ne[1] * ne[2] * ne[3] <= size


cdef object _bytes_needed(lib.ggml_tensor *t, const int64_t *ne, const size_t *nb, object start):
    row = lib.ggml_row_size(t.type, ne[0])
    last = sum([(<object>ne[i] - 1) * nb[i] for i in range(1, 4)])
    return start + max(row + last, <object>row * ne[1] * ne[2] * ne[3])


def reshape(Tensor t not None, *shape):
    """The same values in another shape; `t` must be contiguous."""
    cdef int64_t ne[4]
    alive(t)
    shape_to_ne(shape, t.ptr.type, ne)
    cdef Graph graph = graph_of(t)
    if ne[0] * ne[1] * ne[2] * ne[3] != lib.ggml_nelements(t.ptr):
        raise ShapeError(f"reshape: {describe(t)} has {lib.ggml_nelements(t.ptr)} elements, not those of {shape}")
    if not lib.ggml_is_contiguous(t.ptr):
        raise ShapeError(f"reshape: {describe(t)} must be contiguous; use ops.cont(...)")
    return wrap(graph, lib.ggml_reshape_4d(graph.ctx, t.ptr, ne[0], ne[1], ne[2], ne[3]))


def permute(Tensor t not None, axis0, axis1, axis2, axis3):
    """Dimension i of `t` becomes dimension axis_i of the result; a view."""
    cdef int64_t a0 = whole(axis0), a1 = whole(axis1), a2 = whole(axis2), a3 = whole(axis3)
    if not (0 <= (a0 | a1 | a2 | a3) <= 3) or (1 << a0 | 1 << a1 | 1 << a2 | 1 << a3) != 0b1111:
        raise ShapeError(f"permute: the axes must be 0, 1, 2, 3 in some order, got {(a0, a1, a2, a3)}")
    cdef Graph graph = graph_of(t)
    cdef int64_t ne[4]
    ne[a0], ne[a1], ne[a2], ne[a3] = t.ptr.ne[0], t.ptr.ne[1], t.ptr.ne[2], t.ptr.ne[3]
    check_size(ne)
    if a0 != 0 and lib.ggml_blck_size(t.ptr.type) > 1:
        raise ShapeError(f"permute: the first dimension of {describe(t)} is made of blocks and cannot move")
    return wrap(graph, lib.ggml_permute(graph.ctx, t.ptr, a0, a1, a2, a3))


def transpose(Tensor t not None):
    """The first two dimensions swapped; a view."""
    return permute(t, 1, 0, 2, 3)


cdef bint _is_float(lib.ggml_type kind) noexcept:
    return kind in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16, lib.GGML_TYPE_BF16)


def cont(Tensor t not None):
    """A contiguous copy of `t` (f32, f16, bf16 or i32), of the same shape and type."""
    cdef Graph graph = graph_of(t)
    if not _is_float(t.ptr.type) and t.ptr.type != lib.GGML_TYPE_I32:
        raise ShapeError(f"cont: expected f32, f16, bf16 or i32, got {describe(t)}")
    return wrap(graph, lib.ggml_cont(graph.ctx, t.ptr))


def cast(Tensor t not None, str dtype not None):
    """A copy with another element type: between f32, f16 and bf16, from f32 to those of caches, and from i32 to f32."""
    kind = type_of(dtype)
    cdef Graph graph = graph_of(t)
    if t.ptr.type != lib.GGML_TYPE_I32 or kind != lib.GGML_TYPE_F32:
        _check_copy("cast", t, kind)
    return wrap(graph, lib.ggml_cast(graph.ctx, t.ptr, kind))


cdef int _check_copy(str op, Tensor source, lib.ggml_type kind) except -1:
    if not _is_float(source.ptr.type):
        raise ShapeError(f"{op}: expected f32, f16 or bf16, got {describe(source)}")
    if _is_float(kind):
        return 0
    if not is_cache_type(kind):
        raise ShapeError(f"{op}: the result is {CACHE_TYPES}")
    if source.ptr.type != lib.GGML_TYPE_F32 or not lib.ggml_is_contiguous(source.ptr):
        raise ShapeError(f"{op}: only contiguous f32 can be quantized, got {describe(source)}")
    if source.ptr.ne[0] % lib.ggml_blck_size(kind):
        raise ShapeError(f"{op}: rows of {describe(source)} are no multiple of {lib.ggml_blck_size(kind)}")
    return 0


def copy(Tensor source not None, Tensor into not None):
    """Write the values of `source` into the memory of `into` (a view of a cache, say), converting the type.

    The result must be given to `ctx.expand(...)` to take effect. The two must not share memory.
    """
    cdef Graph graph = graph_of(source, into)
    if lib.ggml_nelements(source.ptr) != lib.ggml_nelements(into.ptr):
        raise ShapeError(f"copy: {describe(source)} and {describe(into)} have different numbers of elements")
    _check_copy("copy", source, into.ptr.type)
    if not lib.ggml_are_same_shape(source.ptr, into.ptr):
        # ggml's scratch memory for quantizing is as long as a row of the target, but it writes a row of the source.
        if lib.ggml_blck_size(into.ptr.type) > 1:
            raise ShapeError(f"copy: {describe(source)} into a quantized {describe(into)}: the shapes must be equal")
        if not lib.ggml_is_contiguous(source.ptr) or not lib.ggml_is_contiguous(into.ptr):
            raise ShapeError(f"copy: {describe(source)} into {describe(into)}: with different shapes, both sides must "
                             "be contiguous")
    if lib.ggml_blck_size(into.ptr.type) > 1 and not lib.ggml_is_contiguous(into.ptr):
        raise ShapeError(f"copy: a quantized {describe(into)} must be contiguous")
    if _overlap(source.ptr, into.ptr):
        raise ShapeError(f"copy: {describe(source)} and {describe(into)} share memory")
    graph.check_target(into, "copy")
    return wrap(graph, lib.ggml_cpy(graph.ctx, source.ptr, into.ptr))


cdef bint _overlap(lib.ggml_tensor *a, lib.ggml_tensor *b) noexcept:
    """Whether two tensors are views of the same memory with bytes in common."""
    if root_of(a) != root_of(b):
        return False
    return a.view_offs < b.view_offs + lib.ggml_nbytes(b) and b.view_offs < a.view_offs + lib.ggml_nbytes(a)


def concat(Tensor a not None, Tensor b not None, axis):
    """`b` after `a` along one dimension."""
    cdef int64_t along = whole(axis)
    cdef int64_t ne[4]
    cdef int i
    if not 0 <= along < 4:
        raise ShapeError(f"concat: axis is 0 to 3, got {axis}")
    cdef Graph graph = graph_of(a, b)
    if a.ptr.type != b.ptr.type or a.ptr.type not in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16, lib.GGML_TYPE_I32):
        raise ShapeError(f"concat: both sides are f32, f16 or i32 alike, got {describe(a)} and {describe(b)}")
    for i in range(4):
        if i != along and a.ptr.ne[i] != b.ptr.ne[i]:
            raise ShapeError(f"concat: {describe(a)} and {describe(b)} differ in dimension {i}, not only in {along}")
        ne[i] = a.ptr.ne[i] + (b.ptr.ne[i] if i == along else 0)
    check_size(ne)
    return wrap(graph, lib.ggml_concat(graph.ctx, dense(graph, a, "concat"), dense(graph, b, "concat"), along))


def repeat(Tensor t not None, *shape):
    """`t` repeated to fill a larger shape whose dimensions are multiples of its own."""
    cdef int64_t ne[4]
    cdef int i
    shape_to_ne(shape, lib.GGML_TYPE_F32, ne)
    cdef Graph graph = graph_of(t)
    for i in range(4):
        if ne[i] % t.ptr.ne[i]:
            raise ShapeError(f"repeat: {tuple(shape)} is no multiple of {describe(t)} in dimension {i}")
    return wrap(graph, lib.ggml_repeat_4d(graph.ctx, dense_f32(graph, t, "repeat"), ne[0], ne[1], ne[2], ne[3]))


def get_rows(Tensor table not None, Tensor index not None):
    """Rows of `table` [n, rows] chosen by `index` i32 [k] -> f32 [n, k]; with more dimensions, one list for each.

    `table` may be any type ggml can dequantize; i32 stays i32. The values of `index` are checked before each compute.
    """
    cdef Graph graph = graph_of(table, index)
    cdef lib.ggml_tensor *a = table.ptr
    cdef lib.ggml_tensor *b = index.ptr
    cdef int64_t ne[4]
    if b.type != lib.GGML_TYPE_I32 or b.nb[0] != sizeof(int):
        raise ShapeError(f"get_rows: the index must be i32 with contiguous rows, got {describe(index)}")
    if a.ne[2] != b.ne[1] or a.ne[3] != b.ne[2] or b.ne[3] != 1:
        raise ShapeError(f"get_rows: index {describe(index)} does not fit {describe(table)}")
    _check_row_type("get_rows", table)
    ne[0], ne[1], ne[2], ne[3] = a.ne[0], b.ne[0], b.ne[1], b.ne[2]
    check_size(ne)
    result = lib.ggml_get_rows(graph.ctx, a, b)
    limit_index(graph, index, a.ne[1], result)
    return wrap(graph, result)


cdef int _check_row_type(str op, Tensor table) except -1:
    cdef lib.ggml_type kind = table.ptr.type
    if not _is_float(kind) and kind != lib.GGML_TYPE_I32 and not lib.ggml_is_quantized(kind):
        raise ShapeError(f"{op}: rows of {describe(table)} cannot be read")
    if kind == lib.GGML_TYPE_Q8_1 or kind == lib.GGML_TYPE_Q8_K:
        raise ShapeError(f"{op}: {describe(table)} is an intermediate type of ggml's kernels, not one to store")
    if table.ptr.nb[0] != lib.ggml_type_size(kind):
        raise ShapeError(f"{op}: rows of {describe(table)} must be contiguous")
    return 0


def set_rows(Tensor table not None, Tensor rows not None, Tensor index not None):
    """Write `rows` f32 [n, k] into the rows of `table` [n, rows] that `index` (i32 or i64 [k]) names.

    `table` may be of any `config.CacheType` and is changed in place: a cache. The result (a view of `table`) must be
    given to `ctx.expand(...)` to take effect. The values of `index` are checked before each compute.
    """
    cdef Graph graph = graph_of(rows, index, table)
    cdef lib.ggml_tensor *a = table.ptr
    cdef lib.ggml_tensor *b = rows.ptr
    cdef lib.ggml_tensor *c = index.ptr
    cdef lib.ggml_tensor *args[2]
    if b.type != lib.GGML_TYPE_F32 or b.nb[0] != sizeof(float):
        raise ShapeError(f"set_rows: the values must be f32 with contiguous rows, got {describe(rows)}")
    if c.type not in (lib.GGML_TYPE_I32, lib.GGML_TYPE_I64) or not lib.ggml_is_contiguous(c):
        raise ShapeError(f"set_rows: the index must be contiguous i32 or i64, got {describe(index)}")
    if not is_cache_type(a.type):
        raise ShapeError(f"set_rows: the table is {CACHE_TYPES}, got {describe(table)}")
    if not lib.ggml_is_contiguous(a) or a.nb[0] != lib.ggml_type_size(a.type):
        raise ShapeError(f"set_rows: the table {describe(table)} must be contiguous")
    if a.ne[0] != b.ne[0] or a.ne[2] != b.ne[2] or a.ne[3] != b.ne[3]:
        raise ShapeError(f"set_rows: rows {describe(rows)} do not fit {describe(table)}")
    if b.ne[1] != c.ne[0] or b.ne[2] % c.ne[1] or b.ne[3] % c.ne[2] or c.ne[3] != 1:
        raise ShapeError(f"set_rows: index {describe(index)} does not fit {describe(rows)}")
    if _overlap(a, b):
        raise ShapeError(f"set_rows: {describe(rows)} and {describe(table)} share memory")
    graph.check_target(table, "set_rows")
    if a.type == lib.GGML_TYPE_IQ4_NL and b.ne[2] * b.ne[3] == 1 and on_cpu_alone(rows):
        args[0], args[1] = b, c
        result = lib.ggml_custom_inplace(graph.ctx, a, args, 2, oe_iq4_nl_rows_op, lib.GGML_N_TASKS_MAX, NULL)
    else:
        result = lib.ggml_set_rows(graph.ctx, a, b, c)
    limit_index(graph, index, a.ne[1], result)
    return wrap(graph, result)
