"""KeptPages: what a backend on the CPU holds in memory, kept in a file while the system has the memory."""

import errno
import os
import sys

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.errors import DeviceError, NoMemoryError
from ollama_engine.ml.device.hostmem import available_bytes

from ollama_engine.ml.ggml cimport libfanout as fan
from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml cimport libpages as pages
from ollama_engine.ml.graph.backend cimport Backend
from ollama_engine.ml.graph.computation cimport Computation
from ollama_engine.ml.graph.storage cimport Storage
from ollama_engine.ml.graph.window cimport Buffer

# Where the contents of each buffer begin in the file: at a page of any system, so that holes are whole pages.
cdef int64_t ALIGNMENT = 1 << 16

SHARE = 0.25
"""Share of the free disk that a file may take: others need it, too, and several engines may sleep."""


class KeptPages:
    """The contents of a backend's storages in a file, from their `drop` to their `load`.

    Addresses stay the same, so that tensors and built graphs are good afterwards. Between the two nothing may compute,
    and nobody may read or write tensors. Mapped weights are not copied: their pages are read from the model file again.

    Raises OSError, and DeviceError for a backend with other devices than the CPU; with nothing changed.
    """

    def __init__(self, Backend backend not None, int file):
        cdef int64_t offset = 0, room
        backend.check_open()
        if not sys.platform.startswith("linux"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if backend.n_handles > 1:
            others = ", ".join(device.name for device in backend.devices[:-1])
            raise DeviceError(f"only the memory of the CPU can be given back and taken again, not that of {others}")
        self._backend, self._file = backend, file
        self._storages = [member for member in backend.live_members() if isinstance(member, Storage)]
        self._offsets = {}
        disk = os.fstatvfs(file)
        room = int(disk.f_bavail * disk.f_frsize * SHARE)
        for storage in self._storages:
            if not (<Storage>storage).read_only:
                self._offsets[storage] = offset
                offset = -(-(offset + _save(storage, file, offset, &room)) // ALIGNMENT) * ALIGNMENT
        self._size = offset
        os.ftruncate(file, offset)  # zeros at the end are a hole, too: what is shorter has lost something

    def drop(self):
        """Give the pages back to the system, those of intermediate results too.

        Raises ComputeError while something computes, with nothing changed. After an OSError some are gone.
        """
        _check_idle(self._backend, self._storages)
        for storage in self._storages:
            _drop(storage)
        _drop_results(self._backend)
        pages.oe_pages_trim()

    @property
    def nbytes(self):
        """Bytes of memory that `load` takes."""
        return sum(storage.nbytes for storage in self._offsets)

    def load(self):
        """Take the memory again, with what it held. Raises NoMemoryError, with nothing changed, and OSError."""
        needed = self.nbytes
        if needed > available_bytes():
            raise NoMemoryError(f"{needed >> 20} MiB are needed, {available_bytes() >> 20} MiB are available")
        left = os.fstat(self._file).st_size
        if left != self._size:
            raise OSError(errno.EIO, f"the file with an engine's memory has {left} bytes instead of {self._size}")
        for storage, offset in self._offsets.items():
            _load(storage, self._file, offset)


cdef int _check_idle(Backend backend, list storages) except -1:
    cdef Storage storage
    with backend.lock:
        backend.check_free()
    for storage in storages:
        with storage.lock:
            storage.busy()
    return 0


cdef int64_t _save(Storage storage, int file, int64_t offset, int64_t *room) except -1:
    """Write a storage's buffers behind each other; the number of bytes."""
    cdef int64_t at = offset
    cdef size_t size
    cdef char *start
    cdef int status
    with storage.lock:
        storage.busy()
        for holder in storage.buffers:
            start, size = (<Buffer>holder).base(), lib.ggml_backend_buffer_get_size((<Buffer>holder).buffer)
            with nogil:
                status = pages.oe_pages_save(start, size, file, at, room)
            _check(status)
            at += size
    return at - offset


cdef int _load(Storage storage, int file, int64_t offset) except -1:
    cdef int64_t at = offset
    cdef size_t size
    cdef char *start
    cdef int status, threads = storage.backend.threads
    with storage.lock:
        storage.busy()
        for holder in storage.buffers:
            start, size = (<Buffer>holder).base(), lib.ggml_backend_buffer_get_size((<Buffer>holder).buffer)
            with nogil:
                fan.oe_prefault_zero(start, size, threads)  # as at start: no later step finds memory short
                status = pages.oe_pages_load(start, size, file, at)
            _check(status)
            at += size
    return 0


cdef int _drop(Storage storage) except -1:
    with storage.lock:
        storage.busy()
        for holder in storage.buffers:
            _check(_drop_buffer((<Buffer>holder).buffer))
    return 0


cdef int _drop_results(Backend backend) except -1:
    """Give back the scheduler's memory, as far as the graph that was computed last lies in it: on the CPU it is one."""
    cdef Computation graph
    cdef lib.ggml_tensor *t
    cdef lib.ggml_backend_buffer_t dropped = NULL
    with backend.lock:
        backend.check_free()
        if backend.allocated is None or backend.scheduler.windows:
            return 0
        graph = backend.allocated
        graph.computed = False
        t = lib.ggml_get_first_tensor(graph.ctx)
        while t != NULL:
            if t.buffer != NULL and t.buffer != dropped and _is_for_results(t.buffer):
                dropped = t.buffer
                _check(_drop_buffer(dropped))
            t = lib.ggml_get_next_tensor(graph.ctx, t)
    return 0


cdef bint _is_for_results(lib.ggml_backend_buffer_t buffer) noexcept:
    return lib.ggml_backend_buffer_get_usage(buffer) == lib.GGML_BACKEND_BUFFER_USAGE_COMPUTE


cdef int _drop_buffer(lib.ggml_backend_buffer_t buffer) noexcept:
    cdef char *start = <char *>lib.ggml_backend_buffer_get_base(buffer)
    cdef size_t size = lib.ggml_backend_buffer_get_size(buffer)
    cdef int status
    with nogil:
        status = pages.oe_pages_drop(start, size)
    return status


cdef int _check(int status) except -1:
    if status != 0:
        raise OSError(status, os.strerror(status))
    return 0
