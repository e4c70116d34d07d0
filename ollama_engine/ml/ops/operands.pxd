from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.tensor cimport Graph, Tensor


cdef double finite(object value, str op, str name) except? -1.0
cpdef double read_softcap(object value, str op) except? -1.0
cdef bint is_cache_type(lib.ggml_type kind) noexcept
cdef int need_f32(Tensor a, str op) except -1
cdef int need_rows(Tensor a, str op) except -1
cdef int check_routed(str op, Tensor experts, Tensor b, Tensor ids) except -1
cdef lib.ggml_tensor *dense(Graph graph, Tensor a, str op) except NULL
cdef lib.ggml_tensor *dense_f32(Graph graph, Tensor a, str op) except NULL
