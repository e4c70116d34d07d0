# csrc/threads/cpu_gate.h and compute_job.hpp

from ollama_engine.ml cimport libggml as lib


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

    struct oe_compute_job:
        lib.ggml_backend_sched_t sched
        lib.ggml_cgraph *graph
        const oe_cpu_gate *gate
        oe_cpu_gate_runner run_gated

    int oe_compute(void *job) noexcept
