#include "threads/fan_out.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { MAX_HELPERS = 63 };

typedef struct {
    oe_piece piece;
    void *context;
    size_t n;
    atomic_size_t next;
    atomic_bool failed;
} work;

static void *help(void *argument) {
    work *w = argument;
    for (size_t i = atomic_fetch_add(&w->next, 1); i < w->n; i = atomic_fetch_add(&w->next, 1)) {
        if (w->piece(w->context, i) != 0) {
            atomic_store(&w->failed, true);
        }
    }
    return NULL;
}

int oe_fan_out(size_t n, int threads, oe_piece piece, void *context) {
    work w = {.piece = piece, .context = context, .n = n};
    pthread_t helpers[MAX_HELPERS];
    int started = 0;
    while (started < MAX_HELPERS && started + 1 < threads && (size_t)started + 1 < n &&
           pthread_create(&helpers[started], NULL, help, &w) == 0) {
        started++;
    }
    help(&w);
    for (int i = 0; i < started; i++) {
        pthread_join(helpers[i], NULL);
    }
    return atomic_load(&w.failed) ? -1 : 0;
}
