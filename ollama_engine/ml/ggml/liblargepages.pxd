# csrc/threads/large_pages.h

from libc.stddef cimport size_t
from libc.stdint cimport int64_t


cdef extern from "threads/large_pages.h" nogil:
    int64_t oe_large_pages_bytes(const char *start, size_t size)
    int OE_LARGE_PAGES_AT_ONCE
    int64_t oe_large_pages_read_again(char *start, size_t size, int file, int64_t offset, int threads, int64_t *read)
