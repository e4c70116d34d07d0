/* How long a thread was ready to run and had no CPU, as the system's scheduler counts it. */
#ifndef OE_THREAD_WAITS_H
#define OE_THREAD_WAITS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The system's number of the calling thread; 0 where there is none (Linux has one). */
long oe_thread_id(void);

/* A descriptor to read a thread of this process by; -1 where the system does not count, or the thread has ended. */
int oe_thread_waits_open(long thread);

/* Nanoseconds since the thread began, up to the last time it got a CPU; -1 when they cannot be read. Takes 1 us. */
int64_t oe_thread_waits_read(int descriptor);

void oe_thread_waits_close(int descriptor);

#ifdef __cplusplus
}
#endif

#endif
