"""What several operations ask about their operands: checks, and where they lie."""

from typing import get_args

from ollama_engine.config import CacheType
from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.computation cimport Computation
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, alive, describe
from ollama_engine.ml.graph.types cimport type_of

cdef double LARGEST_FLOAT = 3.4028234663852886e38


cdef double finite(object value, str op, str name) except? -1.0:
    """`value` as a finite C float. Call it before any check of the graph: converting may run Python code."""
    cdef double number = float(value)
    if not -LARGEST_FLOAT <= number <= LARGEST_FLOAT:
        raise ShapeError(f"{op}: {name} must be a finite number, got {value}")
    return number


SOFTCAPS = (1e-3, 1e6)
cdef double _LEAST_CAP = SOFTCAPS[0], _MOST_CAP = SOFTCAPS[1]


cpdef double read_softcap(object value, str op) except? -1.0:
    """`value` as a soft cap: 0 for none, or one of `SOFTCAPS`, least and most. Raises ShapeError.

    Published models cap at 30 or 50. Within the range, float32 holds score / cap for every score that matters; a
    smaller cap makes all scores alike, and a larger one changes none.
    """
    cdef double cap = float(value)
    if cap != 0 and not _LEAST_CAP <= cap <= _MOST_CAP:
        raise ShapeError(f"{op}: softcap is 0 for none, or {_LEAST_CAP:g} to {_MOST_CAP:g}, got {value}")
    return cap


CACHE_TYPES = " or ".join((", ".join(get_args(CacheType)[:-1]), get_args(CacheType)[-1]))
cdef frozenset _CACHE_KINDS = frozenset([<int>type_of(dtype) for dtype in get_args(CacheType)])


cdef bint is_cache_type(lib.ggml_type kind) noexcept:
    """Whether caches store keys and values of this type: ggml and paged_attention read it, and set_rows writes it."""
    return <int>kind in _CACHE_KINDS


cdef int need_f32(Tensor a, str op) except -1:
    if a.ptr.type != lib.GGML_TYPE_F32:
        raise ShapeError(f"{op}: expected f32, got {describe(a)}; use ops.cast(...)")
    return 0


cdef int need_rows(Tensor a, str op) except -1:
    """Refuse a tensor whose rows are not contiguous; the rows themselves may lie anywhere."""
    need_f32(a, op)
    if a.ptr.nb[0] != sizeof(float):
        raise ShapeError(f"{op}: rows of {describe(a)} must be contiguous; use ops.cont(...)")
    return 0


cdef int check_routed(str op, Tensor experts, Tensor b, Tensor ids) except -1:
    """Refuse what is no product of experts [n, m, e] with b f32 [n, used or 1, k] as ids i32 [used, k] say."""
    cdef lib.ggml_tensor *x = experts.ptr
    cdef lib.ggml_tensor *y = b.ptr
    cdef lib.ggml_tensor *i = ids.ptr
    if not lib.ggml_is_contiguous(x):
        raise ShapeError(f"{op}: the experts {describe(experts)} must be contiguous")
    if y.type != lib.GGML_TYPE_F32:
        raise ShapeError(f"{op}: the values must be f32, got {describe(b)}")
    if i.type != lib.GGML_TYPE_I32 or i.nb[0] != sizeof(int):
        raise ShapeError(f"{op}: the ids must be i32 with contiguous rows, got {describe(ids)}")
    if x.ne[3] != 1 or y.ne[3] != 1 or i.ne[2] != 1 or i.ne[3] != 1:
        raise ShapeError(f"{op}: experts and values have up to 3 dimensions, ids 2; "
                         f"got {describe(experts)}, {describe(b)}, {describe(ids)}")
    if x.ne[0] != y.ne[0] or i.ne[1] != y.ne[2] or i.ne[0] % y.ne[1]:
        raise ShapeError(f"{op}: {describe(experts)}, {describe(b)} and ids {describe(ids)} do not "
                         f"fit: expected values [{x.ne[0]}, {i.ne[0]} or 1, {i.ne[1]}]")
    return 0


cdef lib.ggml_tensor *dense(Graph graph, Tensor a, str op) except NULL:
    """`a` with the strides of a newly made tensor of its shape. The graph needs room for one more tensor.

    ggml_is_contiguous ignores the stride of a dimension of size 1, but many kernels use it all the same.
    """
    cdef lib.ggml_tensor *t = a.ptr
    cdef size_t expected = lib.ggml_type_size(t.type)
    cdef bint strict = t.nb[0] == expected
    cdef int i
    if not lib.ggml_is_contiguous(t):
        raise ShapeError(f"{op}: {describe(a)} must be contiguous; use ops.cont(...)")
    expected = lib.ggml_row_size(t.type, t.ne[0])
    for i in range(1, 4):
        strict = strict and t.nb[i] == expected
        expected *= t.ne[i]
    if strict:
        return t
    return lib.ggml_reshape_4d(graph.ctx, t, t.ne[0], t.ne[1], t.ne[2], t.ne[3])


cdef lib.ggml_tensor *dense_f32(Graph graph, Tensor a, str op) except NULL:
    need_f32(a, op)
    return dense(graph, a, op)


def lies_on_cpu(Tensor weight not None):
    """Whether products of this weight are computed on the CPU: it lies in the host's memory, mapped or not."""
    alive(weight)
    cdef lib.ggml_tensor *w = weight.ptr
    if w.buffer == NULL or not lib.ggml_backend_buffer_is_host(w.buffer):
        return False
    device = lib.ggml_backend_buft_get_device(lib.ggml_backend_buffer_get_type(w.buffer))
    # A buffer type without a device is that of a mapped file.
    return device == NULL or lib.get_dev_type(device) == lib.GGML_BACKEND_DEVICE_TYPE_CPU


def on_cpu_alone(Tensor x not None):
    """Whether the CPU computes `x`, because its backend has no other device: only that runs operations of our own."""
    alive(x)
    return x.owner.is_graph and (<Computation>x.owner).backend.n_handles == 1
