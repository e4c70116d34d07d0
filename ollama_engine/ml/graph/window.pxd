from libc.stddef cimport size_t


cdef class Memory:
    # Windows that exist; windows that are open and forbid changes of the memory.
    cdef int windows
    cdef int open_windows


cdef class Window:
    cdef Memory memory
    cdef const void *data
    cdef size_t size
    cdef bint is_open

    cdef void end(self) noexcept


cdef class Mapping:
    cdef object array
    cdef Window window


cdef Window window_over(Memory memory, const void *data, size_t size)
cdef Mapping mapping_of(object array, Window window)
