from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.window cimport Window


cdef class Owner:
    # -- memory that describes the tensors --
    cdef lib.ggml_context *ctx
    cdef char *arena
    cdef size_t arena_size
    # -- what its tensors are --
    cdef bint is_open
    cdef bint is_graph
    cdef bint read_only
    cdef bint is_repacked
    # -- held while values of a busy owner are exchanged --
    cdef object lock
    cdef object __weakref__

    cdef int start(self, size_t size) except -1
    cdef void release(self) noexcept
    cdef int charge(self, int tensors) except -1
    cdef int busy(self) except -1
    cdef int check_access(self, Tensor t, bint writing) except -1
    cdef int exchanged(self, lib.ggml_tensor *ptr, bint writing) except -1
    # Host memory where values for another device are collected; NULL where they are exchanged at once.
    cdef char *staged(self, lib.ggml_tensor *ptr) noexcept nogil
    cdef Window window(self, Tensor t)


cdef class Graph(Owner):
    # -- row_check: (index tensor, number of rows that its values must stay below, address of the operation) --
    cdef list index_limits
    # -- weights and cache tensors that the graph reads, {address: Tensor}, and their owners, {address: Owner} --
    cdef dict stored
    cdef dict sources
    # -- activations that ops/small_batch has rounded for a product, {(address, kind of rounding): Tensor}; none is
    #    written after that --
    cdef dict rounded
    # -- addresses of tensors that some operation writes into: what is computed of them depends on when that is --
    cdef set written
    # -- what ops/paged shares between layers, and what its operations are told; until the graph is gone --
    cdef dict kept

    cdef bint owns(self, lib.ggml_tensor *ptr) noexcept
    cdef int use_stored(self, Tensor t) except -1
    cdef int check_sources(self) except -1
    cdef int check_target(self, Tensor t, str op) except -1


cdef class Tensor:
    cdef lib.ggml_tensor *ptr
    cdef readonly Owner owner
    # A second copy of a weight in a layout that small-batch products read faster, or None.
    cdef public Tensor repacked
    # Experts that are read when they are used (ml/threads/expert_cache), or None.
    cdef public object cached

    cdef int exchange_buffer(self, object array, bint writing, int64_t offset=*) except -1
    cdef int exchange(self, void *data, size_t size, bint writing, int64_t offset=*) except -1


cdef Tensor wrap(Owner owner, lib.ggml_tensor *ptr)
cdef Graph graph_of(Tensor a, Tensor b=*, Tensor c=*, bint product=*)
cdef int alive(Tensor t) except -1
cdef str describe(Tensor t)
cdef lib.ggml_tensor *root_of(lib.ggml_tensor *ptr) noexcept nogil
