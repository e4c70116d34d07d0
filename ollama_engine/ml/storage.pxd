from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.backend cimport Backend
from ollama_engine.ml.tensor cimport Owner


cdef class BufferHolder:
    cdef lib.ggml_backend_buffer_t buffer


cdef class Storage(Owner):
    cdef readonly Backend backend
    cdef list buffers
    cdef dict tensors
    cdef int capacity
    cdef list keep_alive
