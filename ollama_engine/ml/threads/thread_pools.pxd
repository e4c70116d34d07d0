from libc.stdint cimport int64_t

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.libcompute cimport oe_compute_time, oe_cpu_gate, oe_cpu_gate_runner, oe_cpu_probe


cdef class ThreadPool:
    cdef lib.ggml_threadpool_t ptr
    cdef readonly int threads
    cdef int pid
    # -- how long each of them waits for a CPU; the first is the thread that computes --
    cdef list ids
    cdef list descriptors
    cdef list waits

    cdef int watch(self) except -1
    cdef int _roll_call(self) except -1
    cdef int follow(self, long caller) except -1
    cdef int _open(self, int i) except -1
    cdef int64_t more_waiting(self) except -2
    cdef int unwatch(self) except -1
    cdef int close(self) except -1


cdef class ThreadPools:
    cdef lib.ggml_backend_t cpu
    cdef int pid
    cdef lib.ggml_backend_set_n_threads_t set_n_threads
    cdef lib.set_threadpool_t set_threadpool
    # What computations of this backend report, and how they wait for those of other backends.
    cdef oe_compute_time time
    cdef oe_cpu_gate gate
    cdef oe_cpu_gate_runner run_gated
    # -- pools: one with all threads, and at times one with fewer --
    cdef ThreadPool all
    cdef ThreadPool fewer
    cdef ThreadPool current
    cdef int in_use  # its threads
    cdef object governor
    cdef bint whole_machine
    cdef bint look_due  # there was a pause, and the machine was not looked at since
    # Threads that try whether CPUs are free for more threads, at times.
    cdef oe_cpu_probe *probe

    cdef int start(self, lib.ggml_backend_t cpu, int threads, bint alone) except -1
    cdef int _use_pool(self, ThreadPool pool, bint gated) except -1
    cdef int adjust(self, int64_t work) except -1
    cdef bint spare_cpu(self) noexcept
    cdef int share(self, bint little) except -1
    cdef int _forget_window(self) except -1
    cdef int _begin(self, int spinning) except -1
    cdef int _measure(self) except -1
    cdef object _spare(self)
    cdef int _end_probe(self) except -1
    cdef int _use(self, int threads) except -1
    cdef int close(self) except -1
    cdef int abandon(self) except -1
