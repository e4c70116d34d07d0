from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.backend cimport Backend
from ollama_engine.ml.graph.tensor cimport Owner


cdef class Storage(Owner):
    cdef readonly Backend backend
    cdef list buffers
    cdef dict tensors
    cdef int capacity
    cdef list views
    cdef bint placed

    cdef bint in_use(self) except -1
    cdef int check_device(self, object device) except -1
    cdef int check_fresh(self, str what) except -1
    cdef int take(self, lib.ggml_backend_buffer_type_t kind, str where) except -1
    cdef int forget(self) except -1
