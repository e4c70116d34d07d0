"""write_parts: a block's bytes and their checksum into a file, by a thread that never has Python's lock.

It has a lower priority, so threads that compute may keep it from a CPU for milliseconds. With Python's lock in its hand
the engine's thread waited as long: for 7.7 ms between two steps (measured on Zen 4, two threads).
"""

import os

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector
from posix.unistd cimport write

from ollama_engine.runner.prefix_store.checksum cimport Sums, add, finish, start
from ollama_engine.runner.prefix_store.step_budget cimport Share, StepBudget, Steps, charge, give_way

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    int pthread_create(pthread_t *thread, void *attributes, void *(*work)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/resource.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* Elsewhere a priority is the whole process's. */
    static void oe_lower_priority(int by) {
        const int nice = getpriority(PRIO_PROCESS, 0) + by;
        (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice > 19 ? 19 : nice);
    }
    #else
    static void oe_lower_priority(int by) { (void)by; }
    #endif
    """
    void oe_lower_priority(int by) nogil

PIECE = 64 << 10  # most bytes that are added and written at once: some 0.1 ms, in which a step may need the CPU
cdef size_t _PIECE = PIECE
cdef int NICE = 10  # how much lower the thread's priority is: a tenth of a CPU beside threads that want it all


cdef struct Part:
    const unsigned char *at
    size_t n


cdef struct Block:
    int file
    const Part *parts
    size_t n_parts
    Steps *steps
    Share *share
    int error  # an errno


cdef int put(int file, const unsigned char *at, size_t n) noexcept nogil:
    """Write all of it; an errno, or 0."""
    cdef ssize_t written
    while n:
        written = write(file, at, n)
        if written < 0:
            if errno != EINTR:
                return errno
            continue
        at += written
        n -= written
    return 0


cdef int write_all(const Block *block, double *counted) noexcept nogil:
    """An errno, or 0."""
    cdef Sums sums
    cdef uint64_t digest
    cdef const unsigned char *at
    cdef size_t i, left, n, unpaused = 0
    cdef int error
    start(&sums)
    for i in range(block.n_parts):
        at, left = block.parts[i].at, block.parts[i].n
        while left:
            n = min(left, _PIECE)
            add(&sums, at, n)
            error = put(block.file, at, n)
            if error:
                return error
            at += n
            left -= n
            unpaused += n
            if unpaused >= _PIECE:
                unpaused = 0
                give_way(block.steps, block.share, counted)
    digest = finish(&sums)  # little-endian, as the CPUs are that this runs on
    return put(block.file, <const unsigned char *>&digest, sizeof(digest))


cdef void *write_block(void *argument) noexcept nogil:
    cdef Block *block = <Block *>argument
    cdef double counted = 0  # a new thread's CPU time
    oe_lower_priority(NICE)
    block.error = write_all(block, &counted)
    charge(block.share, &counted)
    return NULL


def write_parts(int file, parts, StepBudget budget not None):
    """Write buffers of bytes, and the XXH64 of all of them behind, into a file's descriptor. Raises OSError.

    Beside steps of `budget` it takes the CPU for a bounded time. Other threads may use Python meanwhile.
    """
    cdef vector[Part] found
    cdef const unsigned char[::1] view
    cdef Block block
    cdef pthread_t thread
    cdef int error
    views = []
    for part in parts:
        view = part
        views.append(view)  # holds the buffer
        if view.shape[0]:
            found.push_back(Part(&view[0], view.shape[0]))
    block.file, block.parts, block.n_parts = file, found.data(), found.size()
    block.steps, block.share, block.error = &budget.steps, &budget.share, 0
    with nogil:
        error = pthread_create(&thread, NULL, write_block, &block)
        if not error:
            pthread_join(thread, NULL)
    if error:
        raise OSError(error, f"no thread can be started that writes them ({os.strerror(error)})")
    if block.error:
        raise OSError(block.error, os.strerror(block.error))
