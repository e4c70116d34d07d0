#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "threads/expert_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ggml.h"

enum { MOST_THREADS = 16, MOST_MATRICES = 8 };
enum { ABSENT, QUEUED, PRESENT };

// Weight of the latest round in how often an expert is used: those of some 64 tokens count.
static const float LATEST = 1.0F / 64;

typedef struct {
    float used;     // part of the rounds, lately, in which the router chose it
    uint64_t round; // the last visit of its layer that chose it
} expert;

typedef struct {
    int block, place, experts, matrices; // number of its block; place among the layers
    oe_expert_matrix *matrix[MOST_MATRICES];
    expert *expert;
    uint64_t round;  // the latest visit
    unsigned waited; // bits of the matrices that were waited for in this visit
    size_t nbytes;   // of one expert, in whole pages
} layer;

struct oe_expert_matrix {
    oe_expert_cache *cache;
    layer *layer;
    unsigned bit;
    oe_expert_file file;
    int64_t offset;
    size_t nbytes;
    char *memory;
    unsigned char *state; // by expert
};

typedef struct {
    oe_expert_matrix *matrix;
    int expert;
} part;

struct oe_expert_cache {
    pthread_mutex_t lock;
    pthread_cond_t queued, done;
    pthread_t thread[MOST_THREADS];
    int threads;
    bool ends;
    int error;
    size_t page, limit, held;
    uint64_t rounds;
    layer **layer;
    int layers;
    part *queue; // a ring with room for every part
    size_t parts, first, waiting;
    oe_expert_counts counts;
};

/* -- reading ------------------------------------------------------------------------------------------------------- */

static int read_range(int file, char *to, int64_t offset, size_t size, size_t least) {
    size_t done = 0;
    while (done < least) {
        const ssize_t got = pread(file, to + done, size - done, (off_t)(offset + (int64_t)done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? errno : EIO;
        }
        done += (size_t)got;
    }
    return 0;
}

// Whole pages, as direct reading wants them. At their ends they may hold bytes of neighbours, which are read again as
// they are; the file may end within the last one.
static int read_part(const oe_expert_cache *cache, part p) {
    const oe_expert_matrix *m = p.matrix;
    const int64_t offset = m->offset + (int64_t)p.expert * (int64_t)m->nbytes, page = (int64_t)cache->page;
    const int64_t begin = offset / page * page, end = (offset + (int64_t)m->nbytes + page - 1) / page * page;
    char *at = m->memory + (size_t)p.expert * m->nbytes;
    if (m->file.direct >= 0 && read_range(m->file.direct, at - (offset - begin), begin, (size_t)(end - begin),
                                          (size_t)(offset - begin) + m->nbytes) == 0) {
        return 0;
    }
    const int status = read_range(m->file.plain, at, offset, m->nbytes, m->nbytes);
#ifdef POSIX_FADV_DONTNEED
    posix_fadvise(m->file.plain, (off_t)offset, (off_t)m->nbytes, POSIX_FADV_DONTNEED); // a copy is in memory now
#endif
    return status;
}

static void *read_parts(void *argument) {
    oe_expert_cache *c = argument;
    pthread_mutex_lock(&c->lock);
    while (true) {
        while (!c->ends && c->waiting == 0) {
            pthread_cond_wait(&c->queued, &c->lock);
        }
        if (c->ends) {
            break;
        }
        const part p = c->queue[c->first];
        c->first = (c->first + 1) % c->parts;
        c->waiting--;
        pthread_mutex_unlock(&c->lock);
        const int error = read_part(c, p);
        pthread_mutex_lock(&c->lock);
        c->error = error ? error : c->error;
        c->counts.bytes_read += p.matrix->nbytes;
        p.matrix->state[p.expert] = PRESENT;
        pthread_cond_broadcast(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* -- what is in memory; with the lock held ------------------------------------------------------------------------- */

static bool is_absent(const layer *l, int e) { return l->matrix[0]->state[e] == ABSENT; }

static void drop(oe_expert_cache *c, const layer *l, int e) {
    for (int i = 0; i < l->matrices; i++) {
        oe_expert_matrix *m = l->matrix[i];
        const uintptr_t at = (uintptr_t)m->memory + (size_t)e * m->nbytes, page = c->page;
        const uintptr_t begin = (at + page - 1) / page * page, end = (at + m->nbytes) / page * page;
        if (begin < end) { // pages at the ends hold bytes of neighbours, too
            madvise((void *)begin, end - begin, MADV_DONTNEED);
        }
        m->state[e] = ABSENT;
    }
    c->held -= l->nbytes;
}

static bool can_drop(const layer *l, int e) {
    for (int i = 0; i < l->matrices; i++) {
        if (l->matrix[i]->state[e] != PRESENT) {
            return false;
        }
    }
    return true;
}

// How many layers will probably be computed before the next use.
static float distance(const oe_expert_cache *c, int from, const layer *l, int e) {
    const int ahead = (l->place - from - 1 + c->layers) % c->layers;
    const float used = l->expert[e].used;
    return (float)ahead + (float)c->layers * (1 / (used > 1e-6F ? used : 1e-6F) - 1);
}

// Drops the expert whose next use is farthest from `now`, but none that `now` needs. False where there is none.
static bool drop_farthest(oe_expert_cache *c, const layer *now) {
    const layer *of = NULL;
    int victim = 0;
    float farthest = -1;
    for (int i = 0; i < c->layers; i++) {
        const layer *l = c->layer[i];
        for (int e = 0; e < l->experts; e++) {
            const bool needed = l == now && l->expert[e].round == now->round;
            if (!is_absent(l, e) && !needed && distance(c, now->place, l, e) > farthest && can_drop(l, e)) {
                of = l, victim = e, farthest = distance(c, now->place, l, e);
            }
        }
    }
    if (of) {
        drop(c, of, victim);
    }
    return of != NULL;
}

static void enqueue(oe_expert_cache *c, part p) {
    c->queue[(c->first + c->waiting++) % c->parts] = p;
    p.matrix->state[p.expert] = QUEUED;
}

// Has the experts that this visit chose and that are absent read: all of the first matrix first.
static void request(oe_expert_cache *c, layer *l) {
    for (int e = 0; e < l->experts; e++) {
        if (l->expert[e].round == l->round && is_absent(l, e)) {
            while (c->held + l->nbytes > c->limit && drop_farthest(c, l)) {
            }
            c->held += l->nbytes;
            c->counts.misses++;
            enqueue(c, (part){l->matrix[0], e});
        }
    }
    for (int i = 1; i < l->matrices; i++) {
        for (int e = 0; e < l->experts; e++) {
            if (l->expert[e].round == l->round && l->matrix[i]->state[e] == ABSENT) {
                enqueue(c, (part){l->matrix[i], e});
            }
        }
    }
    pthread_cond_broadcast(&c->queued);
}

static int expert_of(const layer *l, const struct ggml_tensor *ids, int64_t slot, int64_t token) {
    const int32_t id = *(const int32_t *)((const char *)ids->data + slot * (int64_t)sizeof id +
                                          (size_t)token * ids->nb[1]);
    return id < 0 ? 0 : id < l->experts ? id : l->experts - 1;
}

// A layer is visited anew when a matrix is waited for that was waited for before.
static void visit(oe_expert_cache *c, layer *l, const struct ggml_tensor *ids) {
    l->round = ++c->rounds;
    l->waited = 0;
    for (int e = 0; e < l->experts; e++) {
        l->expert[e].used *= 1 - LATEST;
    }
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t s = 0; s < ids->ne[0]; s++) {
            expert *one = &l->expert[expert_of(l, ids, s, t)];
            if (one->round != l->round) {
                one->round = l->round;
                one->used += LATEST;
                c->counts.uses++;
            }
        }
    }
    request(c, l);
}

// Whether ids name an expert that is not in memory: the visit chose others, or it was dropped since.
static bool lacks(const oe_expert_matrix *m, const struct ggml_tensor *ids) {
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t s = 0; s < ids->ne[0]; s++) {
            if (m->state[expert_of(m->layer, ids, s, t)] == ABSENT) {
                return true;
            }
        }
    }
    return false;
}

void oe_expert_await_op(struct ggml_tensor *dst, int ith, int nth, void *matrix) {
    oe_expert_matrix *m = matrix;
    const struct ggml_tensor *ids = dst->src[0];
    (void)nth;
    if (ith != 0) {
        return;
    }
    pthread_mutex_lock(&m->cache->lock);
    if (m->layer->waited & m->bit || lacks(m, ids)) {
        visit(m->cache, m->layer, ids);
    }
    m->layer->waited |= m->bit;
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t s = 0; s < ids->ne[0]; s++) {
            while (m->state[expert_of(m->layer, ids, s, t)] == QUEUED) {
                pthread_cond_wait(&m->cache->done, &m->cache->lock);
            }
        }
    }
    pthread_mutex_unlock(&m->cache->lock);
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

static void drop_all(oe_expert_cache *c) {
    for (int i = 0; i < c->layers; i++) {
        for (int e = 0; e < c->layer[i]->experts; e++) {
            for (int k = 0; k < c->layer[i]->matrices; k++) {
                while (c->layer[i]->matrix[k]->state[e] == QUEUED) { // of a step that was given up
                    pthread_cond_wait(&c->done, &c->lock);
                }
            }
            if (!is_absent(c->layer[i], e)) {
                drop(c, c->layer[i], e);
            }
        }
    }
}

void oe_expert_cache_drop(oe_expert_cache *c) {
    pthread_mutex_lock(&c->lock);
    drop_all(c);
    pthread_mutex_unlock(&c->lock);
}

int oe_expert_cache_error(oe_expert_cache *c) {
    pthread_mutex_lock(&c->lock);
    const int error = c->error;
    if (error) {
        drop_all(c);
    }
    c->error = 0;
    pthread_mutex_unlock(&c->lock);
    return error;
}

void oe_expert_cache_limit(oe_expert_cache *c, size_t nbytes) {
    pthread_mutex_lock(&c->lock);
    c->limit = nbytes;
    pthread_mutex_unlock(&c->lock);
}

size_t oe_expert_cache_layer_bytes(const oe_expert_cache *c) {
    size_t most = 0;
    for (int i = 0; i < c->layers; i++) {
        const size_t nbytes = c->layer[i]->nbytes * (size_t)c->layer[i]->experts;
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

oe_expert_counts oe_expert_cache_counts(oe_expert_cache *c) {
    pthread_mutex_lock(&c->lock);
    const oe_expert_counts counts = c->counts;
    pthread_mutex_unlock(&c->lock);
    return counts;
}

static layer *layer_of(oe_expert_cache *c, int block, int experts) {
    if (c->layers && c->layer[c->layers - 1]->block == block) {
        return c->layer[c->layers - 1]->experts == experts ? c->layer[c->layers - 1] : NULL;
    }
    layer **grown = realloc(c->layer, ((size_t)c->layers + 1) * sizeof *grown);
    c->layer = grown ? grown : c->layer;
    layer *made = calloc(1, sizeof *made);
    if (made) {
        made->expert = calloc((size_t)experts, sizeof *made->expert);
    }
    if (!grown || !made || !made->expert) {
        free(made ? made->expert : NULL);
        free(made);
        return NULL;
    }
    made->block = block, made->place = c->layers, made->experts = experts;
    c->layer[c->layers++] = made;
    return made;
}

oe_expert_matrix *oe_expert_cache_add(oe_expert_cache *c, int block, int experts, oe_expert_file file, int64_t offset,
                                      size_t nbytes, char *memory) {
    layer *l = layer_of(c, block, experts);
    part *queue = realloc(c->queue, (c->parts + (size_t)experts) * sizeof *queue);
    c->queue = queue ? queue : c->queue;
    oe_expert_matrix *m = calloc(1, sizeof *m);
    unsigned char *state = calloc((size_t)experts, 1);
    if (!l || !queue || !m || !state || l->matrices == MOST_MATRICES) {
        free(m);
        free(state);
        return NULL;
    }
    *m = (oe_expert_matrix){c, l, 1U << l->matrices, file, offset, nbytes, memory, state};
    c->parts += (size_t)experts;
    l->matrix[l->matrices++] = m;
    l->nbytes += (nbytes + c->page - 1) / c->page * c->page + c->page;
    return m;
}

oe_expert_cache *oe_expert_cache_new(int threads) {
    oe_expert_cache *c = calloc(1, sizeof *c);
    if (!c) {
        return NULL;
    }
    c->page = (size_t)sysconf(_SC_PAGESIZE);
    c->limit = SIZE_MAX / 2;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->queued, NULL);
    pthread_cond_init(&c->done, NULL);
    sigset_t all, before; // signals are for Python's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (c->threads < threads && c->threads < MOST_THREADS &&
           pthread_create(&c->thread[c->threads], NULL, read_parts, c) == 0) {
        c->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (c->threads == 0) {
        oe_expert_cache_free(c);
        return NULL;
    }
    return c;
}

void oe_expert_cache_free(oe_expert_cache *c) {
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    pthread_cond_broadcast(&c->queued);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->threads; i++) {
        pthread_join(c->thread[i], NULL);
    }
    for (int i = 0; i < c->layers; i++) {
        for (int k = 0; k < c->layer[i]->matrices; k++) {
            free(c->layer[i]->matrix[k]->state);
            free(c->layer[i]->matrix[k]);
        }
        free(c->layer[i]->expert);
        free(c->layer[i]);
    }
    free(c->layer);
    free(c->queue);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->queued);
    pthread_cond_destroy(&c->done);
    free(c);
}
