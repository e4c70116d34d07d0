#include "threads/cpu_probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "threads/thread_waits.h"

struct oe_cpu_probe {
    int64_t nanoseconds;
    int64_t end;
    atomic_llong waited;
    atomic_int running;
    atomic_bool stop;
    int threads;
    pthread_t handles[];
};

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *want_a_cpu(void *argument) {
    oe_cpu_probe *p = argument;
    while (now() < p->end && !atomic_load_explicit(&p->stop, memory_order_relaxed)) {
    }
    /* Since the thread's start, so the wait for its first CPU counts. */
    const int descriptor = oe_thread_waits_open(oe_thread_id());
    const int64_t waited = descriptor < 0 ? -1 : oe_thread_waits_read(descriptor);
    if (descriptor >= 0) {
        oe_thread_waits_close(descriptor);
    }
    atomic_fetch_add(&p->waited, waited < 0 ? p->nanoseconds : waited);
    atomic_fetch_sub(&p->running, 1);
    return NULL;
}

oe_cpu_probe *oe_cpu_probe_start(int threads, int64_t nanoseconds) {
    oe_cpu_probe *p = calloc(1, sizeof *p + (size_t)threads * sizeof p->handles[0]);
    if (p == NULL) {
        return NULL;
    }
    p->nanoseconds = nanoseconds;
    p->end = now() + nanoseconds;
    atomic_store(&p->running, threads);
    for (; p->threads < threads; p->threads++) {
        if (pthread_create(&p->handles[p->threads], NULL, want_a_cpu, p) != 0) {
            oe_cpu_probe_free(p);
            return NULL;
        }
    }
    return p;
}

double oe_cpu_probe_result(const oe_cpu_probe *p) {
    if (atomic_load(&p->running) > 0) {
        return -1;
    }
    return (double)atomic_load(&p->waited) / (double)p->nanoseconds / p->threads;
}

void oe_cpu_probe_free(oe_cpu_probe *p) {
    if (p == NULL) {
        return;
    }
    atomic_store(&p->stop, true);
    for (int i = 0; i < p->threads; i++) {
        pthread_join(p->handles[i], NULL);
    }
    free(p);
}
