from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.ml.ggml cimport libggml as lib


cdef enum:
    MOST_PIECES = 64


cdef struct oe_piece:
    lib.ggml_tensor cover  # as long as all inputs that it covers
    lib.ggml_backend_t backend
    lib.ggml_backend_buffer_t buffer  # host memory of the same length
    size_t capacity
    char *host


cdef class Uploads:
    cdef oe_piece pieces[MOST_PIECES]
    cdef int n_pieces
    cdef int n_buffers
    # Handle of the device that computes each node, from `look` to `assign`.
    cdef list computed_by
    cdef int pid

    cdef int look(self, lib.ggml_backend_sched_t sched, lib.ggml_cgraph *graph) except -1
    cdef int assign(self, lib.ggml_backend_sched_t sched, lib.ggml_cgraph *graph, lib.ggml_backend_t cpu) except -1
    cdef int collect(self, lib.ggml_backend_sched_t sched, list inputs) except -1
    cdef int add_piece(self, lib.ggml_backend_t backend, lib.ggml_tensor *first, size_t size) except -1
    cdef int forget(self) except -1
    cdef char *host_of(self, lib.ggml_tensor *ptr) noexcept nogil
    cdef int send(self) noexcept
    cdef int close(self) except -1


cdef class SavedOperands:
    cdef lib.ggml_tensor **operands  # [tensors][GGML_MAX_SRC]
    cdef int64_t tensors

    cdef int restore(self, lib.ggml_context *ctx, int64_t tensors) except -1
