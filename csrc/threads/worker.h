// One background thread that runs one task at a time, handed over without a lock of Python's.
#ifndef OE_WORKER_H
#define OE_WORKER_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_worker oe_worker;

// Returns a number of the task's choosing; must not throw.
typedef int (*oe_worker_task)(void *argument);

// A worker with its thread waiting, or NULL when none can be started.
oe_worker *oe_worker_new(void);

// Waits for a running task, then ends the thread. NULL is allowed.
void oe_worker_free(oe_worker *worker);

// Starts a task; 0, or -1 when the one before was not waited for.
int oe_worker_start(oe_worker *worker, oe_worker_task task, void *argument);

// Waits until the started task has ended; its result through `result`. 0, or -1 when none was started.
int oe_worker_wait(oe_worker *worker, int *result);

#ifdef __cplusplus
}
#endif

#endif
