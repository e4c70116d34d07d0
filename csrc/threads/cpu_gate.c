#include "threads/cpu_gate.h"

#include <pthread.h>

/* One for the process: the CPUs are its, whichever library or thread computes. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    unsigned long next;    /* the number that the next one to come draws */
    unsigned long serving; /* the number that may start when its threads fit */
    int running;           /* threads */
    const oe_cpu_gate *last;   /* the one that finished last, as long as its threads may spin; or NULL */
} turns = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, NULL};

static pthread_once_t prepared = PTHREAD_ONCE_INIT;

/* A child of a fork has none of the threads that were computing or waiting. */
static void start_afresh(void) {
    pthread_mutex_init(&turns.lock, NULL);
    pthread_cond_init(&turns.moved, NULL);
    turns.next = turns.serving = 0;
    turns.running = 0;
    turns.last = NULL;
}

static void prepare(void) { pthread_atfork(NULL, NULL, start_afresh); }

static void take(const oe_cpu_gate *turn) {
    pthread_once(&prepared, prepare);
    pthread_mutex_lock(&turns.lock);
    const unsigned long number = turns.next++;
    while (number != turns.serving || (turns.running && turns.running + turn->threads > turn->cpus)) {
        pthread_cond_wait(&turns.moved, &turns.lock);
    }
    turns.serving++;
    turns.running += turn->threads;
    if (turns.last && turns.last != turn) {
        turns.last->rest(turns.last->pool);
    }
    turns.last = NULL;
    pthread_cond_broadcast(&turns.moved);
    pthread_mutex_unlock(&turns.lock);
}

static void give(const oe_cpu_gate *turn) {
    pthread_mutex_lock(&turns.lock);
    turns.running -= turn->threads;
    turns.last = turn;
    pthread_cond_broadcast(&turns.moved);
    pthread_mutex_unlock(&turns.lock);
}

int oe_cpu_gate_run(const oe_cpu_gate *turn, int (*task)(void *), void *argument) {
    if (turn->threads == 0) {
        return task(argument);
    }
    take(turn);
    const int result = task(argument);
    give(turn);
    return result;
}

void oe_cpu_gate_forget(const oe_cpu_gate *turn) {
    pthread_mutex_lock(&turns.lock);
    if (turns.last == turn) {
        turns.last = NULL;
    }
    pthread_mutex_unlock(&turns.lock);
}
