from libc.stdint cimport int64_t


cdef struct Steps:
    # What the engine's thread says; others read it without Python's lock.
    int64_t begun  # 0 while none computes
    int64_t held  # the engine copies
    double longest_wait


cdef struct Share:
    # Of one thread that gives way: the step that it has seen, and its CPU time at which it has nothing left of that.
    int64_t seen
    double spent_at


cdef void give_way(Steps *steps, Share *share) noexcept nogil


cdef class StepBudget:
    cdef Steps steps
    cdef Share share
