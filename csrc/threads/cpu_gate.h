/* A gate before the CPUs, for the computations of all backends of the process that have no GPU: those that run at the
 * same time have no more threads than there are CPUs.
 *
 * ggml's threads wait for each other by spinning. Two pools of as many threads as there are CPUs keep each other from
 * getting on: both engines together then compute a fraction of what one computes alone. Computations pass in the order
 * of arrival, one graph each. */
#ifndef OE_CPU_GATE_H
#define OE_CPU_GATE_H

#ifdef __cplusplus
extern "C" {
#endif

/* What the gate has to know of a backend. */
typedef struct oe_cpu_gate {
    int threads;          /* of a computation; 0 passes without waiting */
    int cpus;             /* of this machine */
    void (*rest)(void *); /* sends the threads of `pool`, which spin for a while after a computation, to sleep */
    void *pool;
} oe_cpu_gate;

/* Waits until enough CPUs are free, then calls task(argument), which must not throw, and returns its result. The pool
 * that computed last, if that is another one, is sent to sleep. */
int oe_cpu_gate_run(const oe_cpu_gate *gate, int (*task)(void *), void *argument);

/* oe_cpu_gate_run as a value, for libraries that this one is not linked to: there must be one of it in a process. */
typedef int (*oe_cpu_gate_runner)(const oe_cpu_gate *gate, int (*task)(void *), void *argument);

/* Must be called before gate->pool is freed. */
void oe_cpu_gate_forget(const oe_cpu_gate *gate);

#ifdef __cplusplus
}
#endif

#endif
