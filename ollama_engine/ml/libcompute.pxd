# csrc/threads/cpu_gate.h and compute_job.hpp

from ollama_engine.ml cimport libggml as lib


cdef extern from "threads/cpu_gate.h" nogil:
    struct oe_turn:
        int threads
        int cpus
        void (*rest)(void *) noexcept
        void *pool

    ctypedef int (*oe_turn_runner)(const oe_turn *turn, int (*task)(void *) noexcept, void *argument) noexcept

    int oe_in_turn(const oe_turn *turn, int (*task)(void *) noexcept, void *argument) noexcept
    void oe_turns_forget(const oe_turn *turn)


cdef extern from "threads/compute_job.hpp" nogil:
    int OE_THREW

    struct oe_compute_job:
        lib.ggml_backend_sched_t sched
        lib.ggml_cgraph *graph
        const oe_turn *turn
        oe_turn_runner in_turn

    int oe_compute(void *job) noexcept
