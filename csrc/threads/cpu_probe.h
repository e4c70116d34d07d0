/* Tries whether CPUs are free: threads that only count the time, and how long they waited for a CPU. */
#ifndef OE_CPU_PROBE_H
#define OE_CPU_PROBE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_cpu_probe oe_cpu_probe;

/* Starts `threads` threads that want a CPU each for so many nanoseconds. NULL when they cannot be started. */
oe_cpu_probe *oe_cpu_probe_start(int threads, int64_t nanoseconds);

/* The share of the time that a thread waited for a CPU, on average; below 0 while the threads run. */
double oe_cpu_probe_result(const oe_cpu_probe *probe);

/* Ends the threads. NULL is allowed. */
void oe_cpu_probe_free(oe_cpu_probe *probe);

#ifdef __cplusplus
}
#endif

#endif
