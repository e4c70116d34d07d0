# csrc/fan_out.h

from libc.stddef cimport size_t


cdef extern from "fan_out.h" nogil:
    ctypedef int (*oe_piece)(void *context, size_t i) noexcept nogil
    int oe_fan_out(size_t n, int threads, oe_piece piece, void *context)
