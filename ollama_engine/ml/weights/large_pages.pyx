"""Large pages for mapped weights: what of a file lies in small ones is read again (csrc/threads/large_pages.h)."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport liblargepages as large
from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.storage cimport Storage
from ollama_engine.ml.graph.window cimport Buffer

LEAST_SPEED = 3e8
"""Bytes per second that a disk must read: a slower one would keep a load waiting for longer than that is worth."""


def bytes_in_large_pages(Storage storage not None):
    """How many bytes of a mapped storage lie in pages of 2 MiB; -1 where the system cannot tell."""
    cdef const char *start
    cdef size_t size
    cdef int64_t found
    with storage.lock:
        buffer = _buffer_of(storage)
        start, size = buffer.base(), lib.ggml_backend_buffer_get_size(buffer.buffer)
        with nogil:
            found = large.oe_large_pages_bytes(start, size)
    return found


def read_into_large_pages(Storage storage not None, int file, double seconds):
    """Read again what lies in small pages of `file`, a descriptor of what the storage maps, for so long at most.

    Its pages must be there (`Storage.populate`). Tensors may be read meanwhile. Returns how many bytes lie in large
    pages now and did not before: 0 where the file system has none, where another process maps the file, and where the
    disk is slower than LEAST_SPEED; -1 where the system cannot tell.
    """
    cdef char *start
    cdef size_t size
    cdef double least = LEAST_SPEED
    cdef int threads = storage.backend.threads
    cdef int64_t gained
    with storage.lock:
        buffer = _buffer_of(storage)
        start, size = buffer.base(), lib.ggml_backend_buffer_get_size(buffer.buffer)
        with nogil:
            gained = large.oe_large_pages_read_again(start, size, file, threads, seconds, least)
    return gained


cdef Buffer _buffer_of(Storage storage):
    storage.busy()
    if not storage.read_only:
        raise ShapeError("this storage is not mapped; call map(...) first")
    return <Buffer>storage.buffers[0]
