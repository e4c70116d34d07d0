from libc.stdint cimport int64_t

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.tensor cimport Graph, Tensor


cdef int limit_index(Graph graph, Tensor index, int64_t rows, lib.ggml_tensor *result) except -1
cdef dict active_limits(Graph graph)
cdef int check_rows(Tensor index, int64_t rows) except -1
