"""Large pages of mapped storages: where they are, and how a part of a file comes into them.

csrc/threads/large_pages.h says how; `page_enlarger.py` says of what, and for how long.
"""

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport liblargepages as large
from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.storage cimport Storage
from ollama_engine.ml.graph.window cimport Buffer

AT_ONCE = large.OE_LARGE_PAGES_AT_ONCE


def bytes_in_large_pages(Storage storage not None, int64_t begin, int64_t size):
    """How many of `size` mapped bytes from `begin` on lie in pages of 2 MiB; -1 where the system cannot tell.

    `begin` is a multiple of 2 MiB.
    """
    cdef const char *start
    cdef int64_t found
    with storage.lock:
        start = _mapped(storage, begin, size)
        with nogil:
            found = large.oe_large_pages_bytes(start, size)
    return found


def read_into_large_pages(Storage storage not None, int file, int64_t begin, int64_t size):
    """Read again what of a range lies in small pages: whole 2 MiB, and AT_ONCE bytes at most.

    `file` is a descriptor of what the storage maps, `begin` a multiple of 2 MiB. Tensors may be read meanwhile. Returns
    how many bytes were read, and how many lie in large pages now and did not before; -1 where the system cannot tell.
    """
    cdef char *start
    cdef int threads = storage.backend.threads
    cdef int64_t read, gained
    with storage.lock:
        start = _mapped(storage, begin, size)
        with nogil:
            gained = large.oe_large_pages_read_again(start, size, file, begin, threads, &read)
    return read, gained


cdef char *_mapped(Storage storage, int64_t begin, int64_t size) except NULL:
    """Where a range begins. The caller holds the lock."""
    storage.busy()
    if not storage.read_only:
        raise ShapeError("this storage is not mapped; call map(...) first")
    buffer = <Buffer>storage.buffers[0]
    room = <int64_t>lib.ggml_backend_buffer_get_size(buffer.buffer)
    if begin < 0 or not 0 <= size <= room or begin > room - size:
        raise ShapeError(f"{size} bytes from byte {begin} are not all within the {room} mapped ones")
    return <char *>lib.ggml_backend_buffer_get_base(buffer.buffer) + begin
