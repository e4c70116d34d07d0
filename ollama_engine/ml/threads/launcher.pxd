from libc.stdint cimport int64_t

from ollama_engine.ml.ggml.libcompute cimport oe_compute_job
from ollama_engine.ml.ggml.libworker cimport oe_worker


cdef enum Way:
    BY_WORKER
    BY_WAITER
    QUEUED


cdef class Launcher:
    # Whether a graph was launched and not waited for yet.
    cdef bint running
    cdef Way way
    cdef oe_compute_job *job
    # How putting the graph into the devices' queues went.
    cdef int queued_status
    cdef oe_worker *worker
    # Nanoseconds until the worker has taken a graph over and its caller knows that it is done, on average.
    cdef int64_t handover

    cdef int start(self, oe_compute_job *job, int64_t meanwhile, bint cpu_is_free) except -1
    cdef int queue(self, oe_compute_job *job) except -1
    cdef int finish(self) except? -1
    cdef int drop(self) except? -1
    cdef int free_worker(self) except -1
    cdef int forget_worker(self) except -1
