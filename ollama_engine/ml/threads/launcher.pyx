"""Launcher: computes the graph that was launched, one at a time.

A thread in the background computes it, or the thread that waits for it, or other devices do from their queues.
All methods are called with the backend's lock held.
"""

from ollama_engine.errors import NoMemoryError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.libcompute cimport oe_compute, oe_compute_begin
from ollama_engine.ml.ggml.libworker cimport (
    oe_worker_free, oe_worker_handover, oe_worker_new, oe_worker_start, oe_worker_wait,
)


cdef class Launcher:
    """One for each Backend, whose `close` ends its thread."""

    cdef int start(self, oe_compute_job *job, int64_t meanwhile, bint cpu_is_free) except -1:
        """Compute in the background, or in `finish` where that is over sooner.

        `meanwhile`: nanoseconds from launching this graph to waiting for it, the last time; -1 if it is launched first.
        Two sleeping threads are woken for a graph in the background: 50 to 150 us each on a virtual machine.
        """
        if 0 <= meanwhile < self.handover:
            self.job = job
            self.way, self.running = BY_WAITER, True
            return 0
        if self.worker == NULL:
            self.worker = oe_worker_new()
            if self.worker == NULL:
                raise NoMemoryError("the system grants no further thread to compute in the background")
        oe_worker_start(self.worker, oe_compute, job, cpu_is_free)
        self.way, self.running = BY_WORKER, True
        return 0

    cdef int queue(self, oe_compute_job *job) except -1:
        """Put a graph with little work for the CPU into the devices' queues, in this thread.

        Another thread would be told, and tell that it is done: some 100 us of each step. Not for workers, which may not
        take at once what they are sent.
        """
        cdef int status = 0
        self.job = job
        with nogil:
            status = oe_compute_begin(job)
        self.queued_status = status
        self.way, self.running = QUEUED, True
        return 0

    cdef int finish(self) except? -1:
        """A ggml_status or OE_THREW, when the graph is computed. Releases the GIL."""
        cdef int result = 0
        cdef oe_compute_job *job = self.job
        cdef oe_worker *worker = self.worker
        if self.way == BY_WAITER:
            with nogil:
                result = oe_compute(job)
        elif self.way == BY_WORKER:
            with nogil:
                oe_worker_wait(worker, &result)
            self.handover += (oe_worker_handover(worker) - self.handover) // 4
        else:
            result = self.queued_status
            with nogil:
                if result == lib.GGML_STATUS_SUCCESS:
                    lib.ggml_backend_sched_synchronize(job.sched)
        self.running = False
        return result

    cdef int drop(self) except? -1:
        """End the graph, whose result nobody wants. One that only `finish` would compute is not computed."""
        if self.way == BY_WAITER:
            self.running = False
            return lib.GGML_STATUS_ABORTED
        return self.finish()

    cdef int free_worker(self) except -1:
        """End the thread, after the graph that it computes."""
        cdef oe_worker *worker = self.worker
        self.worker = NULL
        with nogil:
            oe_worker_free(worker)
        return 0

    cdef int forget_worker(self) except -1:
        """Leave the thread as it is: after a fork, or after a failure inside of it."""
        self.worker = NULL
        return 0
