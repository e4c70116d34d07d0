from libc.stddef cimport size_t

from ollama_engine.ml.ggml cimport libggml as lib


cdef class Memory:
    # Windows that exist; windows that are open and forbid changes of the memory.
    cdef int windows
    cdef int open_windows


cdef class Scheduler(Memory):
    cdef lib.ggml_backend_sched_t ptr
    cdef int pid


cdef class Buffer:
    cdef lib.ggml_backend_buffer_t buffer
    cdef int pid

    cdef char *base(self) noexcept


cdef class Window:
    cdef Memory memory
    cdef const void *data
    cdef size_t size
    cdef bint is_open

    cdef void end(self) noexcept


cdef class Mapping:
    cdef object array
    cdef Window window


cdef Buffer new_buffer(lib.ggml_backend_buffer_t buffer)
cdef Window window_over(Memory memory, const void *data, size_t size)
cdef Mapping mapping_of(object array, Window window)
