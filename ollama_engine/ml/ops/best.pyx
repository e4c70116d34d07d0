"""The largest values of each row, without sorting the row. A device finds the best logits with it.

ggml's operation for it gives them in any order. Devices differ in how long rows may be.
"""

from libc.stdint cimport int64_t

from ollama_engine.errors import NoMemoryError, ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.device.device cimport device_handle
from ollama_engine.ml.ops.operands cimport dense_f32
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, alive, graph_of, wrap
from ollama_engine.ml.graph.types cimport whole

cdef int64_t MOST = (<int64_t>1 << 31) - 1


def best_k(Tensor a not None, k):
    """Indices of the k largest values of each row, in any order, i32 [k, ...].

    Which of several equal values come is undefined, and so are the indices of a row with nan; none comes twice.
    """
    cdef int64_t count = whole(k)
    alive(a)
    if not 1 <= count <= min(a.ptr.ne[0], MOST):
        raise ShapeError(f"best_k: k is 1 to the row's length, {a.ptr.ne[0]}, got {k}")
    cdef Graph graph = graph_of(a)
    return wrap(graph, lib.ggml_top_k(graph.ctx, dense_f32(graph, a, "best_k"), count))


def supports_best_k(device, n, k):
    """Whether a `Device` finds the k best of rows of n float32 values."""
    cdef lib.ggml_init_params params
    cdef int64_t length = whole(n)
    cdef int64_t count = whole(k)
    if not 1 <= count <= min(length, MOST):
        raise ShapeError(f"supports_best_k: k is 1 to n, got {k} of {n}")
    params.mem_size = lib.ggml_tensor_overhead() * 4
    params.mem_buffer = NULL
    params.no_alloc = True
    handle = device_handle(device)
    cdef lib.ggml_context *ctx = lib.ggml_init(params)
    if ctx == NULL:
        raise NoMemoryError("no memory to ask a device what it computes")
    supported = lib.ggml_backend_dev_supports_op(
        handle, lib.ggml_top_k(ctx, lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F32, 1, &length), count))
    lib.ggml_free(ctx)
    return bool(supported)
