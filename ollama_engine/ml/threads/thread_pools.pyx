"""The threads that compute for one backend: as many as were asked for, and fewer while the machine is busy.

A pool of ggml's computes with all its threads: one that is left out would spin all the same. So where fewer threads
are to compute, a second, smaller pool does, and the threads of the first sleep until it is their turn again.
"""

import logging
import os
import time
from contextlib import suppress

cimport cython
from libc.stdlib cimport free, malloc
from posix.unistd cimport getpid

from ollama_engine.errors import NoMemoryError
from ollama_engine.ml.device import placement
from ollama_engine.ml.threads.machine_load import CpuUseMeter, waiting_threads
from ollama_engine.ml.threads.thread_governor import ThreadGovernor
from ollama_engine.ml.threads.threads import check_threads

from ollama_engine.ml.device.device cimport cpu_function, cpu_library_function
from ollama_engine.ml.ggml.libcompute cimport (
    oe_cpu_gate_forget, oe_cpu_gate_run, oe_cpu_probe_free, oe_cpu_probe_result, oe_cpu_probe_start, oe_nanoseconds,
    oe_thread_id, oe_thread_waits_close, oe_thread_waits_open, oe_thread_waits_read,
)

log = logging.getLogger(__name__)

# How long threads spin for the next graph before they sleep: about 2 ms, longer than the gap between two steps.
# ggml's default of 50 would take the cores from callers, and from other engines, for a tenth of a second.
cdef int POLL = 1
# Nanoseconds of computing between two looks at the threads, and for each thread beyond four, which takes 1 us to read.
cdef int64_t WINDOW = 20_000_000
cdef int64_t WINDOW_PER_THREAD = 5_000_000
# Nanoseconds that a probe wants CPUs: longer than the system lets a thread run that has waited.
cdef int64_t PROBE = 30_000_000
# Nanoseconds without computing after which the machine is looked at anew, before the next step.
cdef int64_t PAUSE = 200_000_000
# Products of numbers in an operation from which on all threads compute it, however busy the machine is: an operation is
# then longer than the turn of another program, and with claims on its parts no thread waits long for the others.
cdef int64_t LONG_OPERATION = 1 << 30


cdef void _answer(lib.ggml_tensor *nothing, int ith, int nth, void *ids) noexcept nogil:
    (<long *>ids)[ith] = oe_thread_id()


# The collector may clear a Backend before it frees it, in any order. What is left then frees itself.
@cython.no_gc_clear
cdef class ThreadPool:
    """One of ggml's pools: `threads` - 1 threads, and the one that computes."""

    def __init__(self, int threads):
        cdef lib.ggml_threadpool_params params
        check_threads(threads)
        lib.ggml_threadpool_params_init(&params, threads)
        params.poll = POLL
        self.threads = threads
        self.pid = getpid()
        self.ids = [0] * threads
        self.descriptors = [-1] * threads
        self.waits = [0] * threads
        self.ptr = (<lib.threadpool_new_t>cpu_function("ggml_threadpool_new"))(&params)
        if self.ptr == NULL:
            raise NoMemoryError(f"cannot start {threads} threads")

    cdef int watch(self) except -1:
        """Measure from now on how long the pool's own threads wait for a CPU."""
        cdef int i
        if self.threads > 1:
            self._roll_call()
            for i in range(1, self.threads):
                self._open(i)
        return 0

    cdef int _roll_call(self) except -1:
        """Learn the numbers of the pool's threads: each answers from inside of an operation."""
        cdef lib.ggml_init_params params
        cdef lib.ggml_cplan plan
        cdef lib.ggml_cgraph *graph
        cdef int i
        cdef long *ids = <long *>malloc(self.threads * sizeof(long))
        params.mem_size = lib.ggml_tensor_overhead() + lib.ggml_graph_overhead_custom(16, False) + 1024
        params.mem_buffer = NULL
        params.no_alloc = True
        cdef lib.ggml_context *ctx = lib.ggml_init(params)
        try:
            if ids == NULL or ctx == NULL:
                raise NoMemoryError("no memory to count the threads")
            for i in range(self.threads):
                ids[i] = 0
            graph = lib.ggml_new_graph_custom(ctx, 16, False)
            lib.ggml_build_forward_expand(graph, lib.ggml_custom_4d(
                ctx, lib.GGML_TYPE_F32, 1, 1, 1, 1, NULL, 0, _answer, self.threads, ids))
            plan = (<lib.graph_plan_t>cpu_library_function("ggml_graph_plan"))(graph, self.threads, self.ptr)
            compute = <lib.graph_compute_t>cpu_library_function("ggml_graph_compute")
            with nogil:
                compute(graph, &plan)
            self.ids[1:] = [ids[i] for i in range(1, self.threads)]
        finally:
            if ctx != NULL:
                lib.ggml_free(ctx)
            free(ids)
        return 0

    cdef int follow(self, long caller) except -1:
        """Measure from now on how long `caller` waits, the thread that computes with the pool."""
        if self.descriptors[0] >= 0:
            oe_thread_waits_close(self.descriptors[0])
        self.ids[0] = caller
        return self._open(0)

    cdef int _open(self, int i) except -1:
        self.descriptors[i] = oe_thread_waits_open(self.ids[i])
        self.waits[i] = oe_thread_waits_read(self.descriptors[i])
        return 0

    cdef int64_t more_waiting(self) except -2:
        """Nanoseconds that the threads waited for a CPU since the last call; -1 where the system does not say."""
        cdef int64_t waited = 0, value
        cdef int i
        for i in range(self.threads):
            if i == 0 and self.descriptors[0] < 0:
                continue  # nothing was computed yet
            value = oe_thread_waits_read(self.descriptors[i])
            if value < 0:
                return -1
            waited += value - <int64_t>self.waits[i]
            self.waits[i] = value
        return waited

    cdef int unwatch(self) except -1:
        """Close the descriptors."""
        for descriptor in self.descriptors:
            if descriptor >= 0:
                oe_thread_waits_close(descriptor)
        self.descriptors = [-1] * self.threads
        return 0

    cdef int close(self) except -1:
        self.unwatch()
        if self.ptr != NULL:
            (<lib.threadpool_free_t>cpu_function("ggml_threadpool_free"))(self.ptr)
            self.ptr = NULL
        return 0

    def __dealloc__(self):
        if self.descriptors is not None and self.pid == getpid():
            self.close()


@cython.no_gc_clear
cdef class ThreadPools:
    """The pools of one backend, of which one computes."""

    cdef int start(self, lib.ggml_backend_t cpu, int threads, bint alone) except -1:
        """`alone`: no GPU computes beside the CPU."""
        self.cpu = cpu
        self.pid = getpid()
        self.set_n_threads = <lib.ggml_backend_set_n_threads_t>cpu_function("ggml_backend_set_n_threads")
        self.set_threadpool = <lib.set_threadpool_t>cpu_function("ggml_backend_cpu_set_threadpool")
        self.time.thread_id = oe_thread_id
        self.gate.cpus = placement.usable_cpus()
        self.gate.rest = <void (*)(void *) noexcept nogil>cpu_library_function("ggml_threadpool_pause")
        self.run_gated = oe_cpu_gate_run
        self.all = ThreadPool(threads)
        # With a GPU the CPU's part of a graph is small, and two GPUs can work at the same time.
        self._use_pool(self.all, alone)
        if alone and threads > 1:
            self.all.watch()
            self.governor = ThreadGovernor(threads, CpuUseMeter(placement.own_cpus()))
            # Otherwise the system's number of running threads says nothing about the CPUs of this process.
            self.whole_machine = len(placement.own_cpus()) == os.cpu_count()
        return 0

    cdef int _use_pool(self, ThreadPool pool, bint gated) except -1:
        oe_cpu_gate_forget(&self.gate)  # only then may the gate change
        self.set_threadpool(self.cpu, pool.ptr)
        self.set_n_threads(self.cpu, pool.threads)
        self.gate.threads = pool.threads if gated else 0
        self.gate.pool = pool.ptr
        self.current, self.in_use = pool, pool.threads
        return 0

    cdef int adjust(self, int64_t work) except -1:
        """Between two computations: compute the next one with fewer threads, or with more.

        `work`: what work_of_operation says of it.
        """
        if self.governor is None:
            return 0
        cdef bint paused = oe_nanoseconds() - self.time.end_ns > PAUSE
        if paused:
            self._forget_window()
            self.look_due = True
        elif self.current.threads != self.governor.threads:
            self._forget_window()
        elif self.time.wall_ns >= WINDOW + WINDOW_PER_THREAD * max(0, self.current.threads - 4):
            self._measure()
        if self.governor is None:
            return 0
        if self.look_due and work < LONG_OPERATION:
            self.look_due = False
            self._begin(0 if paused else self.current.threads - 1)
        return self._use(self.all.threads if work >= LONG_OPERATION else self.governor.threads)

    cdef bint spare_cpu(self) noexcept:
        """Whether one CPU more than the computing threads' is there, as far as is known."""
        return self.current is self.all and self.gate.threads < self.gate.cpus

    cdef int share(self, bint little) except -1:
        """Between two computations beside other devices: compute the CPU's part of the next one with one thread where
        it is `little`, such as the embeddings of a few tokens, and with all where it is not.

        Threads that wait would spin all the time, and take CPUs from the one that feeds the device.
        """
        if little and self.fewer is None:
            self.fewer = ThreadPool(1)
        cdef ThreadPool pool = self.fewer if little else self.all
        return 0 if pool is self.current else self._use_pool(pool, False)

    cdef int _forget_window(self) except -1:
        self.time.wall_ns = 0
        self.current.more_waiting()
        return 0

    cdef int _begin(self, int spinning) except -1:
        """Look at the machine. `spinning`: own threads that wait for the next graph, which the system counts, too."""
        waiting = waiting_threads() if self.whole_machine else None
        self.governor.begin(time.monotonic(), None if waiting is None else waiting - spinning)
        return 0

    cdef int _measure(self) except -1:
        cdef int64_t waited = self.current.more_waiting()
        cdef int n = self.current.threads
        if self.current.descriptors[0] < 0 and n > 1 and waited > 0:
            waited = waited * n // (n - 1)  # the thread that computes was not counted yet
        if self.time.thread != self.current.ids[0]:
            self.current.follow(self.time.thread)
        if waited < 0:
            log.debug("this system does not say how long threads wait for a CPU; %d compute at any time",
                      self.current.threads)
            self.governor = None
            return 0
        self.governor.observe(time.monotonic(), self.time.wall_ns * 1e-9, waited * 1e-9, self._spare())
        self.time.wall_ns = 0
        if self.governor.probe and self.probe == NULL:
            self.probe = oe_cpu_probe_start(self.governor.probe, PROBE)
        return 0

    cdef object _spare(self):
        """The share of its time that an ended probe waited for a CPU; None where no probe has ended."""
        if self.probe == NULL:
            return None
        share = oe_cpu_probe_result(self.probe)
        if share < 0:
            return None
        self._end_probe()
        return share

    cdef int _end_probe(self) except -1:
        cdef oe_cpu_probe *probe = self.probe
        self.probe = NULL
        with nogil:
            oe_cpu_probe_free(probe)
        return 0

    cdef int _use(self, int threads) except -1:
        cdef ThreadPool old = self.current, new = self.all
        if threads == old.threads:
            return 0
        if threads < self.all.threads:
            try:
                new = ThreadPool(threads)
                new.watch()
            except NoMemoryError as error:
                log.warning("%d threads compute at any time: %s", old.threads, error)
                self.governor = None
                return 0
        self._use_pool(new, True)
        if old is not self.all:
            old.close()
        self.fewer = None if new is self.all else new
        new.more_waiting()
        new.follow(self.time.thread)
        with suppress(Exception):  # a broken log handler must not end a step
            log.debug("%d of %d threads compute%s", threads, self.all.threads,
                      ": the machine is busy" if threads < old.threads else "", extra={"threads": threads})
        return 0

    def __dealloc__(self):
        if self.cpu != NULL and self.pid == getpid():
            oe_cpu_gate_forget(&self.gate)
            self._end_probe()

    cdef int close(self) except -1:
        """After the backend that computes with them is freed."""
        self.governor = None
        self._end_probe()
        oe_cpu_gate_forget(&self.gate)
        for pool in (self.fewer, self.all):
            if pool is not None:
                (<ThreadPool>pool).close()
        return 0

    cdef int abandon(self) except -1:
        """Give up without freeing: in the child of a fork, or where a computation was left by an exception."""
        self.governor = None
        self.probe = NULL
        for pool in (self.fewer, self.all):
            if pool is not None:
                (<ThreadPool>pool).unwatch()
                (<ThreadPool>pool).ptr = NULL
        return 0
