"""Rows of numbers to ggml's element types and back, as `ggml_quantize_chunk` and the types' own functions do it.

Both calls release the GIL: threads may work on different rows at once.
"""

from libc.stdint cimport int64_t, uint8_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.types cimport dtype_name, type_of

# What ggml_quantize_chunk takes without an importance matrix; it ends the process for any other type.
TARGETS = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
           "iq4_nl", "iq4_xs", "mxfp4")


def quantize_rows(str dtype not None, const float[:, ::1] rows not None, uint8_t[::1] out not None,
                  const float[::1] importance=None):
    """Write `rows` float32 [n, row length] into `out` as elements of `dtype`.

    `importance` has one weight for each element of a row; types that use no importance ignore it. `out` must have
    exactly the size of the result. A number that is not finite spoils its block; see `are_valid`. Raises ShapeError for
    sizes that do not fit and for types that cannot be written.
    """
    cdef lib.ggml_type kind = type_of(dtype)
    cdef int64_t n = rows.shape[0], length = rows.shape[1]
    cdef const float *weights = NULL
    if dtype not in TARGETS:
        raise ShapeError(f"rows cannot be written as {dtype}; possible: {', '.join(TARGETS)}")
    if length == 0 or length % lib.ggml_blck_size(kind):
        raise ShapeError(f"rows of {dtype} come in blocks of {lib.ggml_blck_size(kind)}, got rows of {length}")
    if <size_t>out.shape[0] != <size_t>n * lib.ggml_row_size(kind, length):
        raise ShapeError(f"{n} rows of {length} {dtype} take {n * lib.ggml_row_size(kind, length)} bytes, "
                         f"got room for {out.shape[0]}")
    if importance is not None:
        if importance.shape[0] != length:
            raise ShapeError(f"rows of {length} want as many weights of importance, got {importance.shape[0]}")
        weights = &importance[0]
    if n == 0:
        return
    with nogil:
        lib.ggml_quantize_chunk(kind, &rows[0, 0], &out[0], 0, n, length, weights)


def dequantize_rows(str dtype not None, const uint8_t[::1] data not None, float[::1] out not None):
    """Write the elements of `dtype` that `data` holds into `out` as float32.

    Raises ShapeError when the sizes do not fit each other or the type has no such conversion.
    """
    cdef lib.ggml_type kind = type_of(dtype)
    cdef lib.ggml_to_float_t convert = lib.ggml_get_type_traits(kind).to_float
    cdef int64_t n = out.shape[0]
    if convert is NULL:
        raise ShapeError(f"elements of {dtype_name(kind)} cannot be read as float32")
    if n % lib.ggml_blck_size(kind) or <size_t>data.shape[0] != lib.ggml_row_size(kind, n):
        raise ShapeError(f"{data.shape[0]} bytes do not hold {n} elements of {dtype}")
    if n:
        with nogil:
            convert(&data[0], &out[0], n)


def are_valid(str dtype not None, const uint8_t[::1] data not None):
    """Whether the elements of `dtype` in `data` are finite numbers, and whole blocks.

    ggml says on standard error what is wrong.
    """
    cdef lib.ggml_type kind = type_of(dtype)
    cdef bint valid
    if data.shape[0] == 0:
        return True
    with nogil:
        valid = lib.ggml_validate_row_data(kind, &data[0], data.shape[0])
    return valid
