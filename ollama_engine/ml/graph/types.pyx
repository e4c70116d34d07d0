"""Element types and shapes: names to ggml's numbers, and sizes that ggml can count."""

import itertools

import numpy as np

from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib

# ggml counts rows and columns in 32 bits, and multiplies sizes without overflow checks.
cdef int64_t MAX_DIM = (1LL << 31) - 1
cdef int64_t MAX_ELEMENTS = 1LL << 40
cdef tuple INTEGERS = (int, np.integer)

cdef dict _type_ids():
    cdef dict ids = {}
    cdef int i
    for i in range(<int>lib.GGML_TYPE_COUNT):
        # Retired ids have no block size; their names say DEPRECATED or NONE.
        if lib.ggml_blck_size(<lib.ggml_type>i) > 0:
            ids[(<bytes>lib.ggml_type_name(<lib.ggml_type>i)).decode()] = i
    return ids


cdef dict TYPE_IDS = _type_ids()

cdef dict NUMPY_KINDS = {
    lib.GGML_TYPE_F32: np.dtype(np.float32), lib.GGML_TYPE_F16: np.dtype(np.float16),
    lib.GGML_TYPE_F64: np.dtype(np.float64), lib.GGML_TYPE_I8: np.dtype(np.int8),
    lib.GGML_TYPE_I16: np.dtype(np.int16), lib.GGML_TYPE_I32: np.dtype(np.int32),
    lib.GGML_TYPE_I64: np.dtype(np.int64),
}  # fmt: skip


def dtypes():
    """Names of all element types that ggml knows."""
    return tuple(TYPE_IDS)


def block_of(str dtype not None):
    """(elements, bytes) of one block of a type; (1, size) for types without blocks."""
    cdef lib.ggml_type kind = type_of(dtype)
    return lib.ggml_blck_size(kind), lib.ggml_type_size(kind)


def type_id(str dtype not None):
    """The number that GGUF files have for a type."""
    return <int>type_of(dtype)


cdef lib.ggml_type type_of(str dtype) except? lib.GGML_TYPE_COUNT:
    found = TYPE_IDS.get(dtype)
    if found is None:
        raise ShapeError(f"unknown tensor type {dtype!r}; known: {', '.join(TYPE_IDS)}")
    return <lib.ggml_type><int>found


cdef str dtype_name(lib.ggml_type type):
    return (<bytes>lib.ggml_type_name(type)).decode()


cdef object kind_of(lib.ggml_type type):
    """The numpy dtype of a type's elements (one object for each type), or None where numpy has none."""
    return NUMPY_KINDS.get(<int>type)


cdef int check_size(const int64_t *ne) except -1:
    """Refuse four dimensions that ggml could not count."""
    cdef int i
    cdef int64_t rows = 1
    for i in range(4):
        if not 1 <= ne[i] <= MAX_DIM:
            raise ShapeError(f"dimensions are whole numbers from 1 to 2**31 - 1, got {[ne[j] for j in range(4)]}")
    for i in range(1, 4):
        if rows > MAX_DIM // ne[i]:
            raise ShapeError(f"shape {[ne[j] for j in range(4)]} has more than 2**31 - 1 rows")
        rows *= ne[i]
    if rows > MAX_ELEMENTS // ne[0]:
        raise ShapeError(f"shape {[ne[j] for j in range(4)]} has more than 2**40 elements")
    return 0


cdef tuple first_of(object values, Py_ssize_t most):
    """The first `most` values of an iterable; a plain number counts as one value."""
    if type(values) is tuple and len(<tuple>values) <= most:
        return values
    return (values,) if isinstance(values, INTEGERS) else tuple(itertools.islice(values, most))


cdef int64_t _dimension(object value) except -1:
    """`value` as an integer; 0 for anything that cannot be a dimension."""
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_CheckExact(value):
        if not isinstance(value, INTEGERS):
            return 0
        value = int(value)
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    return number if not overflow and 1 <= number <= MAX_DIM else 0


cdef int shape_to_ne(object shape, lib.ggml_type type, int64_t *ne) except -1:
    """Check a shape (1 to 4 positive dimensions, whole blocks per row, no overflow) and write it as four numbers."""
    cdef tuple dims = first_of(shape, 5)
    cdef Py_ssize_t i, n = len(dims)
    if not 1 <= n <= 4:
        raise ShapeError(f"a tensor has 1 to 4 dimensions, got shape {dims}")
    for i in range(4):
        ne[i] = _dimension(dims[i]) if i < n else 1
        if ne[i] == 0:
            raise ShapeError(f"dimensions are whole numbers from 1 to 2**31 - 1, got shape {dims}")
    check_size(ne)
    if ne[0] % lib.ggml_blck_size(type):
        raise ShapeError(f"rows of {dtype_name(type)} come in blocks of {lib.ggml_blck_size(type)}, got shape {dims}")
    return 0


cdef int64_t whole(object value) except? -1:
    """`value` as a C integer; raises for floats. (Cython itself accepts a float as a C argument and truncates it.)"""
    return PyNumber_Index(value)


cdef int axis_of(object axis) except -1:
    cdef int64_t n = whole(axis)
    if not 0 <= n < 4:
        raise ShapeError(f"axis is 0 to 3, got {axis}")
    return n


cdef bint on_host(const lib.ggml_tensor *tensor) noexcept:
    """Whether its values can be read at its address; also where it has no memory yet."""
    return tensor.buffer == NULL or lib.ggml_backend_buffer_is_host(<lib.ggml_backend_buffer_t>tensor.buffer)


cdef int check_kind(object given, object expected, str what) except -1:
    """Refuse values of another element type; None expects raw bytes."""
    if expected is None:
        if given.kind not in "uV":
            raise ShapeError(f"{what} takes its raw bytes, got an array of {given}")
    elif given != expected:
        raise ShapeError(f"{what} takes {expected} values, got {given}")
    return 0
