from libc.stdint cimport uint64_t

cdef enum:
    STRIPE = 32  # bytes that the four sums take at once


cdef struct Sums:
    uint64_t[4] lanes
    unsigned char[STRIPE] rest  # what does not fill a stripe yet
    uint64_t length


cdef void start(Sums *sums) noexcept nogil
cdef void add(Sums *sums, const unsigned char *at, size_t n) noexcept nogil
cdef uint64_t finish(Sums *sums) noexcept nogil
