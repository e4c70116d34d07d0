# csrc/threads/cpu_gate.h, compute_job.hpp, cpu_probe.h and thread_waits.h

from libc.stdint cimport int64_t

from ollama_engine.ml.ggml cimport libggml as lib


cdef extern from "threads/cpu_gate.h" nogil:
    struct oe_cpu_gate:
        int threads
        int cpus
        void (*rest)(void *) noexcept
        void *pool

    ctypedef int (*oe_cpu_gate_runner)(const oe_cpu_gate *gate, int (*task)(void *) noexcept, void *argument) noexcept

    int oe_cpu_gate_run(const oe_cpu_gate *gate, int (*task)(void *) noexcept, void *argument) noexcept
    void oe_cpu_gate_forget(const oe_cpu_gate *gate)


cdef extern from "threads/compute_job.hpp" nogil:
    int OE_THREW

    struct oe_compute_time:
        int64_t wall_ns
        int64_t end_ns
        long (*thread_id)() noexcept
        long thread

    int64_t oe_nanoseconds() noexcept

    struct oe_compute_job:
        lib.ggml_backend_sched_t sched
        lib.ggml_backend_t only
        lib.ggml_cgraph *graph
        oe_compute_time *time
        const oe_cpu_gate *gate
        oe_cpu_gate_runner run_gated

    int oe_compute_begin(const oe_compute_job *job) noexcept
    int oe_compute(void *job) noexcept

cdef extern from "threads/thread_waits.h" nogil:
    long oe_thread_id() noexcept
    int oe_thread_waits_open(long thread) noexcept
    int64_t oe_thread_waits_read(int descriptor) noexcept
    void oe_thread_waits_close(int descriptor) noexcept

cdef extern from "threads/cpu_probe.h" nogil:
    struct oe_cpu_probe:
        pass

    oe_cpu_probe *oe_cpu_probe_start(int threads, int64_t nanoseconds) noexcept
    double oe_cpu_probe_result(const oe_cpu_probe *probe) noexcept
    void oe_cpu_probe_free(oe_cpu_probe *probe) noexcept
