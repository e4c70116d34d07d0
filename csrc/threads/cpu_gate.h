/* A gate for the computations of all backends of the process without a GPU: computations that run at the same time have
 * no more threads together than there are CPUs.
 *
 * The reason: ggml's threads wait for each other by spinning. Two pools with as many threads as CPUs block each other,
 * and both engines together compute a fraction of what one computes alone. Computations pass in order of arrival, one
 * graph each. */
#ifndef OE_CPU_GATE_H
#define OE_CPU_GATE_H

#ifdef __cplusplus
extern "C" {
#endif

/* What the gate needs to know about a backend. */
typedef struct oe_cpu_gate {
    int threads;          /* of one computation; 0: never waits */
    int cpus;             /* of this machine */
    void (*rest)(void *); /* sends the threads of `pool` to sleep, which spin for a while after a computation */
    void *pool;
} oe_cpu_gate;

/* Waits until enough CPUs are free, calls task(argument), which must not throw, and returns its result. First sends the
 * pool that computed last to sleep, if it is another one. */
int oe_cpu_gate_run(const oe_cpu_gate *gate, int (*task)(void *), void *argument);

/* oe_cpu_gate_run as a value, for libraries that do not link this one: a process must have exactly one gate. */
typedef int (*oe_cpu_gate_runner)(const oe_cpu_gate *gate, int (*task)(void *), void *argument);

/* Must be called before gate->pool is freed. */
void oe_cpu_gate_forget(const oe_cpu_gate *gate);

#ifdef __cplusplus
}
#endif

#endif
