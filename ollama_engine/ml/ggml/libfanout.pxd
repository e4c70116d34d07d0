# csrc/threads/fan_out.h and prefault.h

from libc.stddef cimport size_t


cdef extern from "threads/fan_out.h" nogil:
    ctypedef int (*oe_piece)(void *context, size_t i) noexcept nogil
    int oe_fan_out(size_t n, int threads, oe_piece piece, void *context)

cdef extern from "threads/prefault.h" nogil:
    void oe_prefault_zero(void *start, size_t size, int threads)
    int oe_prefault_populate(void *start, size_t size, int threads)
