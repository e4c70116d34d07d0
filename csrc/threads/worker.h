// A background thread that runs one task at a time. Handing a task over takes no lock of Python's.
#ifndef OE_WORKER_H
#define OE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_worker oe_worker;

// A task: returns a number of its choosing, and must not throw.
typedef int (*oe_worker_task)(void *argument);

// A worker with its thread waiting, or NULL when none can be started.
oe_worker *oe_worker_new(void);

// Waits for a running task, then ends the thread. NULL is allowed.
void oe_worker_free(oe_worker *worker);

// Starts a task. Returns 0, or -1 when the task before was not waited for. With `cpu_is_free`, who waits for the task
// looks for its end for a fraction of a millisecond before sleeping, and so does the worker for the next task.
int oe_worker_start(oe_worker *worker, oe_worker_task task, void *argument, bool cpu_is_free);

// Waits until the started task has ended and stores its result. Returns 0, or -1 when no task was started.
int oe_worker_wait(oe_worker *worker, int *result);

// Nanoseconds that handing over the task took that was waited for last: from its start until the worker ran it, and,
// where the waiting thread slept, from its end until that thread knew.
int64_t oe_worker_handover(const oe_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
