from libc.stddef cimport size_t

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.computation cimport Computation
from ollama_engine.ml.graph.tensor cimport Tensor


cdef class Context(Computation):
    # The thread that makes tensors here.
    cdef unsigned long builder
    # -- memory of constants --
    cdef list chunks
    cdef size_t chunk_used
    cdef size_t chunk_size

    cdef int check_builder(self) except -1
    cdef Tensor new(self, str dtype, object shape)
    cdef Tensor constant(self, object array, object shape, str dtype)
    cdef int place(self, Tensor t, bint zeroed) except -1
    cdef int add_chunk(self, lib.ggml_backend_buffer_type_t kind, size_t size) except -1
    cdef int own(self, Tensor t) except -1
    cdef int grow(self, lib.ggml_tensor *output) except -1
    cdef int drop(self) except -1
