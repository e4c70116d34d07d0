"""Row numbers that a graph reads from its inputs: ggml either ends the process on a bad one or does not check."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint32_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, wrap


cdef int limit_index(Graph graph, Tensor index, int64_t rows, lib.ggml_tensor *result) except -1:
    """Note that the operation `result` uses the values of `index` as row numbers below `rows`.

    `Context.compute` checks them. ggml either ends the process on a bad row number or does not check at all.
    """
    cdef lib.ggml_tensor *source = index.ptr
    cdef bint moved = False
    while True:
        if source.view_src != NULL and source.op in (lib.GGML_OP_VIEW, lib.GGML_OP_RESHAPE, lib.GGML_OP_PERMUTE,
                                                     lib.GGML_OP_TRANSPOSE):
            source = source.view_src
        elif source.op == lib.GGML_OP_CONT:
            source = source.src[0]
            moved = True
        else:
            break
    if source.op in (lib.GGML_OP_ARGSORT, lib.GGML_OP_TOP_K):
        if source.src[0].ne[0] > rows:
            raise ShapeError(f"indices sorted out of {source.src[0].ne[0]} values cannot select among {rows} rows")
        return 0
    if source.op != lib.GGML_OP_NONE:
        raise ShapeError("row numbers must be an input, a constant, or the result of argsort, top_k or best_k; "
                         f"got the result of {(<bytes>lib.ggml_op_name(source.op)).decode()}")
    if moved:
        index = wrap(index.owner, source)
    graph.index_limits.append((index, rows, <size_t>result))
    return 0


cdef dict active_limits(Graph graph):
    """{address: (index, rows)} of the operations in the graph, with the smallest number of rows for each index."""
    cdef dict limits = {}
    for index, rows, result in graph.index_limits:
        if (<lib.ggml_tensor *><size_t>result).flags & lib.GGML_TENSOR_FLAG_COMPUTE:
            key = <size_t>(<Tensor>index).ptr
            if key not in limits or rows < limits[key][1]:
                limits[key] = (index, rows)
    return limits


cdef bint _all_below(const int32_t *values, int64_t n, uint32_t rows) noexcept:
    """Whether all values lie in [0, rows). The loop has no branch, so that the compiler vectorizes it."""
    cdef int64_t i
    cdef uint32_t most = 0
    for i in range(n):
        most = max(most, <uint32_t>values[i])
    return most < rows


cdef int check_rows(Tensor index, int64_t rows) except -1:
    """Every value of an index tensor that holds memory must be a row number."""
    cdef lib.ggml_tensor *t = index.ptr
    cdef int64_t i0, i1, i2, i3
    cdef int64_t value = 0
    cdef char *row
    if t.data == NULL or t.buffer == NULL:
        return 0  # not part of the graph that is computed
    if not lib.ggml_backend_buffer_is_host(t.buffer):
        values = index.numpy()
        if values.size and (values.min() < 0 or values.max() >= rows):
            raise ShapeError(f"row numbers are 0 to {rows - 1}, got {values.min()} to {values.max()}")
        return 0
    if t.type == lib.GGML_TYPE_I32 and lib.ggml_is_contiguous(t) and _all_below(
            <const int32_t *>t.data, lib.ggml_nelements(t), min(rows, 1 << 31)):
        return 0
    for i3 in range(t.ne[3]):
        for i2 in range(t.ne[2]):
            for i1 in range(t.ne[1]):
                row = <char *>t.data + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3]
                for i0 in range(t.ne[0]):
                    value = (<int64_t *>(row + i0 * t.nb[0]))[0] if t.type == lib.GGML_TYPE_I64 \
                        else (<int32_t *>(row + i0 * t.nb[0]))[0]
                    if not 0 <= value < rows:
                        raise ShapeError(f"row numbers are 0 to {rows - 1}, got {value} at place {(i0, i1, i2, i3)}")
    return 0
