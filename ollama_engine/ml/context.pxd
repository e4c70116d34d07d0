from libc.stddef cimport size_t

from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.backend cimport Backend
from ollama_engine.ml.tensor cimport Graph, Tensor


cdef class Context(Graph):
    cdef readonly Backend backend
    cdef readonly int max_nodes
    cdef lib.ggml_cgraph *graph
    # -- tensors made so far --
    cdef int n_tensors
    cdef list inputs
    cdef set unwritten
    # -- memory of constants --
    cdef list chunks
    cdef size_t chunk_used
    cdef size_t chunk_size
    # -- state --
    cdef bint has_outputs

    cdef Tensor new(self, str dtype, object shape)
    cdef int place(self, Tensor t) except -1
    cdef int prepare(self) except -1
