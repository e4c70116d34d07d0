"""ExpertCache: experts of a mixture that is larger than memory, of which a bounded number are in memory."""

import mmap
import os
from contextlib import suppress

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdint cimport int64_t
from posix.unistd cimport getpid

from ollama_engine.errors import ClosedError, ComputeError, NoMemoryError

from ollama_engine.ml.ggml cimport libexpertcache as lib

# Reads that a disk has to choose from; more did not raise the speed of the one that was measured.
cdef int THREADS = 4
# Python names it from 3.13 on; the number is that of Linux on x86-64 and ARM64.
cdef int NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
cdef int WIPE_ON_FORK = 18  # MADV_WIPEONFORK of Linux


cdef class ExpertCache:
    """Reads experts when the router has chosen them, and keeps those that will be used soonest
    (csrc/threads/expert_cache.h).

    Tensors lie in memory that is as large as their file, at the same offsets; it has pages where experts are present.
    `ops.await_experts` makes a graph wait for them: whatever else reads such a tensor may find zeros.
    """

    def __cinit__(self):
        self.pid = getpid()
        self.memories, self.descriptors = [], []
        self.ptr = lib.oe_expert_cache_new(THREADS)
        if self.ptr == NULL:
            raise NoMemoryError("no memory, or no thread, to read experts with")

    def __dealloc__(self):
        self._free()

    cdef int _free(self) except -1:
        cdef lib.oe_expert_cache *ptr
        with cython.critical_section(self):
            ptr = self.ptr
            self.ptr = NULL  # before others can ask it for its counts
        if ptr != NULL and self.pid == getpid():  # a forked child has no such threads
            with nogil:
                lib.oe_expert_cache_free(ptr)
        return 0

    def add_file(self, path):
        """Memory for the tensors of a file, to be mapped by a Storage; it has no pages yet. Raises OSError."""
        plain = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.descriptors.append([-1, plain])
        try:
            self.descriptors[-1][0] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0))
        except OSError:  # the file system knows page cache only
            pass
        size = (os.fstat(plain).st_size // mmap.PAGESIZE + 2) * mmap.PAGESIZE  # parts are read in whole pages
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
        # A huge page is not given back in parts. What is read past the page cache must not land in pages that a forked
        # child shares (open(2)): it gets empty ones.
        for advice in (getattr(mmap, "MADV_NOHUGEPAGE", 0), WIPE_ON_FORK):
            with suppress(OSError):  # a kernel without it
                memory.madvise(advice)
        self.memories.append(memory)
        return memory

    def add(self, int block, int experts, int file, int64_t offset, size_t nbytes):
        """The experts of one matrix, which has `nbytes`, from byte `offset` on of the file that was added as number
        `file`. Matrices of a block are added one behind the other, in the order in which they are computed.
        """
        cdef Py_buffer view
        cdef lib.oe_expert_file descriptors
        self._check()
        descriptors.direct, descriptors.plain = self.descriptors[file]
        PyObject_GetBuffer(self.memories[file], &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        start = <char *>view.buf
        PyBuffer_Release(&view)
        cdef CachedExperts added = CachedExperts.__new__(CachedExperts)
        added.cache = self
        added.ptr = lib.oe_expert_cache_add(self.ptr, block, experts, descriptors, offset, nbytes // experts,
                                            start + offset)
        if added.ptr == NULL:
            raise NoMemoryError("no memory for a list of experts")
        return added

    @property
    @cython.critical_section
    def layer_bytes(self):
        """Bytes that all experts of the largest layer take: a prompt uses most of them at once."""
        self._check()
        return lib.oe_expert_cache_layer_bytes(self.ptr)

    @cython.critical_section
    def limit(self, size_t nbytes):
        """Keep so many bytes of experts from now on."""
        self._check()
        lib.oe_expert_cache_limit(self.ptr, nbytes)

    @cython.critical_section
    def counts(self):
        """Since the model was loaded: {"uses": times that a layer used an expert, "misses": .., "bytes_read": ..}, and
        others (oe_expert_counts); but "reading": parts that wait to be read or are being read now.
        """
        self._check()
        # With Python's lock: where it was released, another thread's `close` could free the cache.
        return dict(lib.oe_expert_cache_counts(self.ptr))

    def check(self):
        """Raise ComputeError where a part could not be read since the last call. Nothing may compute."""
        cdef int error = 0
        self._check()
        with nogil:
            error = lib.oe_expert_cache_error(self.ptr)
        if error:
            raise ComputeError(f"experts could not be read from the model's file: {os.strerror(error)}")

    def drop(self):
        """Give the memory back. Nothing may compute; the next step reads its experts again."""
        self._check()
        with nogil:
            lib.oe_expert_cache_drop(self.ptr)

    def close(self):
        """End the threads and give the memory back. Nothing may compute. Safe to call twice."""
        if self.ptr != NULL and self.pid == getpid():
            self.drop()
        self._free()
        for pair in self.descriptors:
            for descriptor in pair:
                if descriptor >= 0:
                    os.close(descriptor)
        self.descriptors = []

    cdef int _check(self) except -1:
        if self.ptr == NULL:
            raise ClosedError("this cache of experts is closed")
        return 0


cdef class CachedExperts:
    """One matrix of a mixture, whose experts are in an ExpertCache."""
