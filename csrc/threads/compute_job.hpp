/* One computation of a graph, as a task for oe_worker and oe_cpu_gate_run. */
#ifndef OE_COMPUTE_JOB_HPP
#define OE_COMPUTE_JOB_HPP

#include <limits.h>
#include <stdint.h>

#include <chrono>

#include "ggml-backend.h"
#include "threads/cpu_gate.h"

#define OE_THREW INT_MIN /* no ggml_status */

/* What the computations since the last look took, without the wait at the gate. */
struct oe_compute_time {
    int64_t wall_ns;
    int64_t end_ns; /* of the last one, by oe_nanoseconds */
    long (*thread_id)(void);
    long thread; /* that computed last */
};

static inline int64_t oe_nanoseconds(void) {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct oe_compute_job {
    ggml_backend_sched_t sched;
    ggml_backend_t only; /* the one device, which needs no scheduler to compute a graph that has memory; or NULL */
    ggml_cgraph *graph;
    oe_compute_time *time;
    const oe_cpu_gate *gate;
    oe_cpu_gate_runner run_gated;
};

/* ggml's C++ parts allocate with `new`, and an exception that leaves a thread's first function ends the process. */
static int oe_compute_now(void *argument) noexcept {
    const oe_compute_job *job = static_cast<oe_compute_job *>(argument);
    try {
        const int64_t start = oe_nanoseconds();
        const int status = job->only != NULL ? ggml_backend_graph_compute(job->only, job->graph)
                                             : ggml_backend_sched_graph_compute(job->sched, job->graph);
        job->time->end_ns = oe_nanoseconds();
        job->time->wall_ns += job->time->end_ns - start;
        job->time->thread = job->time->thread_id();
        return status;
    } catch (...) {
        return OE_THREW;
    }
}

/* Puts a graph into the queues of its devices, and computes the CPU's part of it: a ggml_status, or OE_THREW. The result
 * is there after ggml_backend_sched_synchronize. */
static inline int oe_compute_begin(const oe_compute_job *job) noexcept {
    try {
        return ggml_backend_sched_graph_compute_async(job->sched, job->graph);
    } catch (...) {
        return OE_THREW;
    }
}

/* A ggml_status, or OE_THREW. */
static int oe_compute(void *argument) noexcept {
    const oe_compute_job *job = static_cast<oe_compute_job *>(argument);
    return job->run_gated(job->gate, oe_compute_now, argument);
}

#endif
