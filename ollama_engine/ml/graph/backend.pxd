from libc.stdint cimport int64_t, uint64_t

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.libcompute cimport oe_compute_job
from ollama_engine.ml.threads.launcher cimport Launcher
from ollama_engine.ml.threads.thread_pools cimport ThreadPools
from ollama_engine.ml.graph.uploads cimport Uploads
from ollama_engine.ml.graph.window cimport Scheduler


cdef enum:
    DEVICE_SLOTS = 16  # GGML_SCHED_MAX_BACKENDS
    # Products, or results, that a thread computes in some 100 us: what the CPU does of a step beside a GPU, mostly.
    SMALL_WORK = 1 << 19


cdef class Backend:
    # -- handles, freed by close() --
    cdef lib.ggml_backend_t handles[DEVICE_SLOTS]
    cdef int n_handles
    # The CPU and its memory, which are ggml's own and stay: a Context asks for constants without `lock`.
    cdef lib.ggml_backend_dev_t cpu_device
    cdef lib.ggml_backend_buffer_type_t cpu_memory
    cdef lib.ggml_backend_sched_t sched
    cdef Scheduler scheduler
    cdef lib.ggml_backend_sched_t measurer
    cdef ThreadPools pools
    cdef Uploads uploads
    cdef Launcher launcher
    cdef lib.graph_plan_t plan_graph
    cdef int pid
    # -- configuration --
    cdef readonly object params
    cdef readonly object kernels
    cdef readonly tuple devices
    # Connections to other machines, which some of `devices` belong to.
    cdef readonly tuple workers
    cdef readonly int threads
    cdef readonly int max_nodes
    # -- state, changed with `lock` held --
    cdef object lock
    cdef object members
    # The context whose values lie in the scheduler's memory, and the structure that this memory was planned for.
    cdef object allocated
    cdef uint64_t planned
    # Counts the times that this memory was replaced: addresses in it are those of its own time.
    cdef uint64_t memory_number
    # Bytes that the CPU's kernels need beside the results of the largest graph planned.
    cdef size_t work
    # {device name: bytes} of the scheduler's memory. Replaced, never changed: read without `lock`.
    cdef dict graph_sizes
    # Bytes that constants may still take before the system is asked again what is available.
    cdef size_t constant_room
    # The context that ggml works on with the GIL released, or that was launched and not waited for yet.
    cdef object busy
    cdef object __weakref__

    cdef int enrol(self, member) except -1
    cdef list live_members(self)
    cdef int _connect(self, choose) except -1
    cdef int _start(self) except -1
    cdef lib.ggml_backend_sched_t _new_scheduler(self) except NULL
    cdef int _free(self) except -1
    cdef int adjust_threads(self, int64_t work, int64_t of_cpu) except -1
    cdef int check_open(self) except -1
    cdef int check_idle(self) except -1
    cdef int check_workers(self) except -1
    cdef int pin_operations(self, lib.ggml_backend_sched_t sched, lib.ggml_cgraph *graph) noexcept
    cdef int check_unmapped(self) except -1
    cdef int check_free(self) except -1
    cdef int launch(self, object context, oe_compute_job *job, int64_t meanwhile, int64_t of_cpu) except -1
    cdef int refuse_more_than_available(self, lib.ggml_cgraph *graph, const size_t *sizes) except -1
    cdef int64_t work_of_cpu(self, lib.ggml_cgraph *graph) noexcept
    cdef int forget_graph(self) except -1
    cdef int start_plan(self) except -1
    cdef int renew_scheduler(self) except -1
    cdef int note_graph_sizes(self) except -1
    cdef size_t held_by_host(self) noexcept
    cdef lib.ggml_backend_sched_t measuring_scheduler(self) except NULL
    cdef size_t more_work(self, lib.ggml_cgraph *graph) noexcept
    cdef int give_up(self) except -1
    cdef lib.ggml_backend_buffer_type_t buffer_type(self, int device) noexcept
