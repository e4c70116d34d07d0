from libc.stdint cimport int64_t


cdef struct Steps:
    # What the engine's thread says; others read it without Python's lock.
    int64_t begun  # 0 while none computes
    int64_t held  # the engine copies
    double longest_wait


cdef struct Share:
    # Of the threads that give way, of which one computes at a time.
    int64_t seen  # the latest step
    double left  # CPU seconds beside it


cdef void charge(Share *share, double *counted) noexcept nogil
cdef void give_way(Steps *steps, Share *share, double *counted) noexcept nogil


cdef class StepBudget:
    cdef Steps steps
    cdef Share share
    cdef double counted  # the Python thread's
