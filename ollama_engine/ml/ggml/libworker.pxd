# csrc/threads/worker.h

from libc.stdint cimport int64_t

cdef extern from "threads/worker.h" nogil:
    struct oe_worker:
        pass
    ctypedef int (*oe_worker_task)(void *argument) noexcept

    oe_worker *oe_worker_new()
    void oe_worker_free(oe_worker *worker)
    int oe_worker_start(oe_worker *worker, oe_worker_task task, void *argument, bint cpu_is_free)
    int oe_worker_wait(oe_worker *worker, int *result)
    int64_t oe_worker_handover(const oe_worker *worker)
