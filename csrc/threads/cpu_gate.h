/* Turns at the CPUs, for the computations of all backends of the process that have no GPU: those that run at the same
 * time have no more threads than there are CPUs.
 *
 * ggml's threads wait for each other by spinning. Two pools of as many threads as there are CPUs keep each other from
 * getting on: both engines together then make a fraction of what one makes alone. Turns are taken in the order of
 * arrival, one graph each. */
#ifndef OE_CPU_GATE_H
#define OE_CPU_GATE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_cpu_gate {
    int threads;          /* that a computation runs; 0 takes no turn */
    int cpus;             /* that there are */
    void (*rest)(void *); /* sends the threads of `pool`, which spin for a while after a computation, to sleep */
    void *pool;
} oe_cpu_gate;

/* task(argument), when its turn has come; the pool that computed last, if that is another one, is sent to sleep.
 * Returns what the task returns; it must not throw. */
int oe_cpu_gate_run(const oe_cpu_gate *turn, int (*task)(void *), void *argument);

/* oe_cpu_gate_run as a value, for libraries that this one is not linked to: there must be one of it in a process. */
typedef int (*oe_cpu_gate_runner)(const oe_cpu_gate *turn, int (*task)(void *), void *argument);

/* To be called before the turn's pool is freed. */
void oe_cpu_gate_forget(const oe_cpu_gate *turn);

#ifdef __cplusplus
}
#endif

#endif
