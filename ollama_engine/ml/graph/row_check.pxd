from libc.stdint cimport int64_t

from ollama_engine.ml.graph.tensor cimport Tensor


cdef int check_rows(Tensor index, int64_t rows) except -1
