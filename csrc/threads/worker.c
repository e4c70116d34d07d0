#include "threads/worker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

/* Nanoseconds for which a thread looks for what it waits for, without sleeping. A thread whose CPU has nothing else to
 * do takes 50 to 150 us to wake on a virtual machine (measured). */
#define LOOK 200000

#if defined(__APPLE__) /* its conditions know no other clock */
#define CLOCK CLOCK_REALTIME
#else
#define CLOCK CLOCK_MONOTONIC
#endif

enum { IDLE, READY, RUNNING, DONE, LEAVING };

struct oe_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_int state; /* changed with the lock held */
    oe_worker_task task;
    void *argument;
    int result;
    bool looks;           /* whether a CPU is free for the waiting thread */
    int64_t began, ended; /* the task */
    int64_t took;         /* nanoseconds of the one before */
    int64_t begin_late, end_late; /* the task: nanoseconds until it ran, and until the waiting thread woke */
};

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Leaves the core to its other thread for a moment, which may be one that computes. */
static void pause_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* With the lock held: looks for a state until a time. */
static void look_for(oe_worker *w, int state, int64_t until) {
    pthread_mutex_unlock(&w->lock);
    while (atomic_load_explicit(&w->state, memory_order_relaxed) != state && now() < until) {
        pause_core();
    }
    pthread_mutex_lock(&w->lock);
}

/* With the lock held: sleeps until a time, or until the state is changed. */
static void sleep_until(oe_worker *w, int64_t until) {
    const struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_cond_timedwait(&w->changed, &w->lock, &t);
}

static void *serve(void *self) {
    oe_worker *w = self;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (w->looks && w->state == DONE) {
            look_for(w, READY, now() + LOOK);
        }
        while (w->state != READY && w->state != LEAVING) {
            pthread_cond_wait(&w->changed, &w->lock);
        }
        if (w->state == LEAVING) {
            break;
        }
        w->state = RUNNING;
        w->begin_late = now() - w->began;
        pthread_mutex_unlock(&w->lock);
        const int result = w->task(w->argument);
        pthread_mutex_lock(&w->lock);
        w->result = result;
        w->ended = now();
        w->took = w->ended - w->began;
        w->state = DONE;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

oe_worker *oe_worker_new(void) {
    oe_worker *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return NULL;
    }
    w->state = IDLE;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t by_clock;
    pthread_condattr_init(&by_clock);
#if !defined(__APPLE__)
    pthread_condattr_setclock(&by_clock, CLOCK);
#endif
    pthread_cond_init(&w->changed, &by_clock);
    pthread_condattr_destroy(&by_clock);
    if (pthread_create(&w->thread, NULL, serve, w) != 0) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return NULL;
    }
    return w;
}

void oe_worker_free(oe_worker *w) {
    if (w == NULL) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    while (w->state == READY || w->state == RUNNING) {
        pthread_cond_wait(&w->changed, &w->lock);
    }
    w->state = LEAVING;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int oe_worker_start(oe_worker *w, oe_worker_task task, void *argument, bool cpu_is_free) {
    pthread_mutex_lock(&w->lock);
    const bool idle = w->state == IDLE;
    if (idle) {
        w->task = task;
        w->argument = argument;
        w->looks = cpu_is_free;
        w->began = now();
        w->state = READY;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return idle ? 0 : -1;
}

int oe_worker_wait(oe_worker *w, int *result) {
    pthread_mutex_lock(&w->lock);
    const bool started = w->state != IDLE;
    if (started) {
        const bool early = w->state != DONE;
        const int64_t end = w->began + w->took; /* as far as the one before tells */
        while (w->looks && w->state != DONE && now() < end - LOOK) {
            sleep_until(w, end - LOOK);
        }
        if (w->looks && w->state != DONE) {
            look_for(w, DONE, end + LOOK);
        }
        while (w->state != DONE) {
            pthread_cond_wait(&w->changed, &w->lock);
        }
        w->end_late = early ? now() - w->ended : 0;
        *result = w->result;
        w->state = IDLE;
    }
    pthread_mutex_unlock(&w->lock);
    return started ? 0 : -1;
}

int64_t oe_worker_handover(const oe_worker *w) { return w->begin_late + w->end_late; }
