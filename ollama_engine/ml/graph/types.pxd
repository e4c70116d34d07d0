from libc.stdint cimport int64_t

from ollama_engine.ml.ggml cimport libggml as lib

# Whether Python runs without its lock. What that lock protected is then held by the backend's, or by one thread.
cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define OE_FREE_THREADED 1
    #else
    #define OE_FREE_THREADED 0
    #endif
    """
    const bint FREE_THREADED "OE_FREE_THREADED"


cdef lib.ggml_type type_of(str dtype) except? lib.GGML_TYPE_COUNT
cdef str dtype_name(lib.ggml_type type)
cdef int check_size(const int64_t *ne) except -1
cdef tuple first_of(object values, Py_ssize_t most)
cdef int shape_to_ne(object shape, lib.ggml_type type, int64_t *ne) except -1
cdef int64_t whole(object value) except? -1
cdef int axis_of(object axis) except -1
cdef int check_kind(object given, object expected, str what) except -1
cdef object kind_of(lib.ggml_type type)
cdef bint on_host(const lib.ggml_tensor *tensor) noexcept
