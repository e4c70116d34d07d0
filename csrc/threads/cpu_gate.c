#include "threads/cpu_gate.h"

#include <pthread.h>

/* One gate for the process, because all its libraries and threads share the CPUs. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    unsigned long next;      /* the ticket that the next arriving computation draws */
    unsigned long serving;   /* the ticket that may start as soon as its threads fit */
    int running;             /* threads that compute now */
    const oe_cpu_gate *last; /* the backend that computed last, while its threads may still spin; or NULL */
} queue = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, NULL};

static pthread_once_t prepared = PTHREAD_ONCE_INIT;

/* In the child of a fork: none of the computing and waiting threads exist there. */
static void start_afresh(void) {
    pthread_mutex_init(&queue.lock, NULL);
    pthread_cond_init(&queue.moved, NULL);
    queue.next = queue.serving = 0;
    queue.running = 0;
    queue.last = NULL;
}

static void prepare(void) { pthread_atfork(NULL, NULL, start_afresh); }

static void enter(const oe_cpu_gate *gate) {
    pthread_once(&prepared, prepare);
    pthread_mutex_lock(&queue.lock);
    const unsigned long number = queue.next++;
    while (number != queue.serving || (queue.running && queue.running + gate->threads > gate->cpus)) {
        pthread_cond_wait(&queue.moved, &queue.lock);
    }
    queue.serving++;
    queue.running += gate->threads;
    if (queue.last && queue.last != gate) {
        queue.last->rest(queue.last->pool);
    }
    queue.last = NULL;
    pthread_cond_broadcast(&queue.moved);
    pthread_mutex_unlock(&queue.lock);
}

static void leave(const oe_cpu_gate *gate) {
    pthread_mutex_lock(&queue.lock);
    queue.running -= gate->threads;
    queue.last = gate;
    pthread_cond_broadcast(&queue.moved);
    pthread_mutex_unlock(&queue.lock);
}

int oe_cpu_gate_run(const oe_cpu_gate *gate, int (*task)(void *), void *argument) {
    if (gate->threads == 0) {
        return task(argument);
    }
    enter(gate);
    const int result = task(argument);
    leave(gate);
    return result;
}

void oe_cpu_gate_forget(const oe_cpu_gate *gate) {
    pthread_mutex_lock(&queue.lock);
    if (queue.last == gate) {
        queue.last = NULL;
    }
    pthread_mutex_unlock(&queue.lock);
}
