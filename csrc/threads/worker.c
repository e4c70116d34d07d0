#include "threads/worker.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum state { IDLE, READY, RUNNING, DONE, LEAVING };

struct oe_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum state state;
    oe_worker_task task;
    void *argument;
    int result;
};

static void *serve(void *self) {
    oe_worker *w = self;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->state != READY && w->state != LEAVING) {
            pthread_cond_wait(&w->changed, &w->lock);
        }
        if (w->state == LEAVING) {
            break;
        }
        w->state = RUNNING;
        pthread_mutex_unlock(&w->lock);
        const int result = w->task(w->argument);
        pthread_mutex_lock(&w->lock);
        w->result = result;
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
    pthread_cond_init(&w->changed, NULL);
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

int oe_worker_start(oe_worker *w, oe_worker_task task, void *argument) {
    pthread_mutex_lock(&w->lock);
    const bool idle = w->state == IDLE;
    if (idle) {
        w->task = task;
        w->argument = argument;
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
        while (w->state != DONE) {
            pthread_cond_wait(&w->changed, &w->lock);
        }
        *result = w->result;
        w->state = IDLE;
    }
    pthread_mutex_unlock(&w->lock);
    return started ? 0 : -1;
}
