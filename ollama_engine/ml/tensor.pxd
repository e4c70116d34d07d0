from libc.stdint cimport int64_t

from ollama_engine.ml cimport libggml as lib


cdef class Owner:
    # -- lifetime: what must outlive the tensors --
    cdef lib.ggml_context *ctx
    cdef bint is_graph
    cdef object __weakref__

    cdef int charge(self, int tensors) except -1
    cdef int mark_written(self, lib.ggml_tensor *ptr) except -1


cdef class Graph(Owner):
    # -- index tensors and the number of rows that their values must stay below --
    cdef dict index_limits
    # -- weights and cache tensors that the graph reads, and their owners --
    cdef set stored
    cdef set sources

    cdef int use_stored(self, Tensor t) except -1
    cdef int check_sources(self) except -1
    cdef int limit_index(self, Tensor index, int64_t rows) except -1


cdef class Tensor:
    cdef lib.ggml_tensor *ptr
    cdef readonly Owner owner
    # A second copy of a weight in a layout that a few-row product reads faster, or None.
    cdef public Tensor packed


cdef Tensor wrap(Owner owner, lib.ggml_tensor *ptr)
cdef Graph graph_of(Tensor a, Tensor b=*, Tensor c=*)
cdef int alive(Tensor t) except -1
cdef lib.ggml_type type_of(str dtype) except? lib.GGML_TYPE_COUNT
cdef str dtype_name(lib.ggml_type type)
cdef int shape_to_ne(object shape, lib.ggml_type type, int64_t *ne) except -1
cdef str describe(Tensor t)
