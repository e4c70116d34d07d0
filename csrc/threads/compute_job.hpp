/* One computation of a graph, as a task for oe_worker and oe_cpu_gate_run. */
#ifndef OE_COMPUTE_JOB_HPP
#define OE_COMPUTE_JOB_HPP

#include <limits.h>

#include "ggml-backend.h"
#include "threads/cpu_gate.h"

#define OE_THREW INT_MIN /* no ggml_status */

struct oe_compute_job {
    ggml_backend_sched_t sched;
    ggml_cgraph *graph;
    const oe_cpu_gate *gate;
    oe_cpu_gate_runner run_gated;
};

/* ggml's C++ parts allocate with `new`, and an exception that leaves a thread's first function ends the process. */
static int oe_compute_now(void *argument) noexcept {
    const oe_compute_job *job = static_cast<oe_compute_job *>(argument);
    try {
        return ggml_backend_sched_graph_compute(job->sched, job->graph);
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
