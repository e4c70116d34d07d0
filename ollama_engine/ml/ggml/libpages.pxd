# csrc/threads/pages.h

from libc.stddef cimport size_t
from libc.stdint cimport int64_t


cdef extern from "threads/pages.h" nogil:
    int oe_pages_save(const char *start, size_t size, int file, int64_t offset, int64_t *room)
    int oe_pages_drop(char *start, size_t size)
    int oe_pages_load(char *start, size_t size, int file, int64_t offset)
    void oe_pages_huge(const void *start, size_t size)
    void oe_pages_trim()
