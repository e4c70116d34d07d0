"""Row numbers that a graph reads from its inputs: ggml either ends the process on a bad one or does not check."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.tensor cimport Tensor


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
