#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "ggml.h"
#include "threads/expert_layers.h"

// Weight of the latest round in how often an expert is used: those of some 64 tokens count.
static const float LATEST = 1.0F / 64;

// A guess is read ahead where at least this part of those of its rank came true, of some 16 lately: what is read for
// nothing delays what is awaited, for the disk is busy most of the time.
static const float TRUSTED = 0.8F, LATEST_GUESS = 1.0F / 16;

/* -- what routers choose; with the lock held ---------------------------------------------------------------------- */

static int expert_of(const oe_expert_layer *l, const struct ggml_tensor *ids, int64_t slot, int64_t token) {
    const int32_t id = *(const int32_t *)((const char *)ids->data + slot * (int64_t)sizeof id +
                                          (size_t)token * ids->nb[1]);
    return id < 0 ? 0 : id < l->experts ? id : l->experts - 1;
}

// Has the experts that this visit chose and that are absent read: all of the first matrix first.
static void request(oe_expert_cache *c, oe_expert_layer *l) {
    for (int e = 0; e < l->experts; e++) {
        if (l->expert[e].round == l->round && !l->expert[e].held) {
            oe_hold_expert(c, l, e, false);
            c->counts.misses++;
        }
    }
    for (int i = 0; i < l->matrices; i++) {
        for (int e = 0; e < l->experts; e++) {
            if (l->expert[e].round == l->round && l->matrix[i]->state[e] == OE_ABSENT) {
                oe_queue_part(c, &c->asked, (oe_expert_part){l->matrix[i], e}, OE_QUEUED);
            }
        }
    }
    pthread_cond_broadcast(&c->queued);
}

// Compares a visit with what was guessed of it.
static void learn(oe_expert_cache *c, oe_expert_layer *l) {
    for (int e = 0; e < l->experts; e++) {
        oe_expert *one = &l->expert[e];
        const bool chosen = one->round == l->round;
        if (l->guess && one->guess == l->guess) {
            l->trust[one->rank] += LATEST_GUESS * ((float)chosen - l->trust[one->rank]);
            c->counts.guesses++;
            c->counts.guessed_right += chosen;
        }
        if (chosen && one->unused) {
            one->unused = false;
            c->counts.ahead_used++;
        }
    }
    l->guess = 0;
}

// Has those of the latest guess read that are absent and trusted: all of the first matrix first, the most probable ones
// before the others.
static void read_ahead(oe_expert_cache *c) {
    const oe_expert_layer *l = c->next;
    for (int i = 0; i < l->matrices; i++) {
        for (int rank = 0; rank < OE_MOST_RANKS; rank++) {
            for (int e = 0; e < l->experts && l->trust[rank] >= TRUSTED; e++) {
                const bool guessed = l->expert[e].guess == l->guess && l->expert[e].rank == rank;
                if (guessed && l->matrix[i]->state[e] == OE_ABSENT && c->guessed.waiting < c->parts) {
                    oe_queue_part(c, &c->guessed, (oe_expert_part){l->matrix[i], e}, OE_GUESSED);
                }
            }
        }
    }
    pthread_cond_broadcast(&c->queued);
}

// A layer is visited anew when a matrix is waited for that was waited for before.
static void visit(oe_expert_cache *c, oe_expert_layer *l, const struct ggml_tensor *ids) {
    l->round = ++c->rounds;
    l->waited = 0;
    c->now = l;
    if (c->next == l) {
        oe_forget_guesses(c);
    }
    for (int e = 0; e < l->experts; e++) {
        l->expert[e].used *= 1 - LATEST;
    }
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t s = 0; s < ids->ne[0]; s++) {
            oe_expert *one = &l->expert[expert_of(l, ids, s, t)];
            if (one->round != l->round) {
                one->round = l->round;
                one->used += LATEST;
                c->counts.uses++;
            }
        }
    }
    learn(c, l);
    request(c, l);
    if (c->next && c->next != l && c->next->guess) { // not before, or experts of this layer would make room
        read_ahead(c);
    }
}

// Whether ids name an expert that is neither in memory nor asked for: it was not chosen, or was dropped since.
static bool lacks(const oe_expert_matrix *m, const struct ggml_tensor *ids) {
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t s = 0; s < ids->ne[0]; s++) {
            if (m->state[expert_of(m->layer, ids, s, t)] < OE_QUEUED) {
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
            while (m->state[expert_of(m->layer, ids, s, t)] != OE_PRESENT) {
                pthread_cond_wait(&m->cache->done, &m->cache->lock);
            }
        }
    }
    pthread_mutex_unlock(&m->cache->lock);
}

void oe_expert_guess_op(struct ggml_tensor *dst, int ith, int nth, void *matrix) {
    oe_expert_matrix *m = matrix;
    oe_expert_layer *l = m->layer;
    const struct ggml_tensor *ids = dst->src[0];
    (void)nth;
    if (ith != 0) {
        return;
    }
    pthread_mutex_lock(&m->cache->lock);
    oe_forget_guesses(m->cache);
    m->cache->next = l;
    l->guess = ++m->cache->guesses;
    for (int64_t s = 0; s < ids->ne[0] && s < OE_MOST_RANKS; s++) {
        for (int64_t t = 0; t < ids->ne[1]; t++) {
            oe_expert *one = &l->expert[expert_of(l, ids, s, t)];
            if (one->guess != l->guess) {
                one->guess = l->guess;
                one->rank = (int)s;
            }
        }
    }
    pthread_mutex_unlock(&m->cache->lock);
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

static void drop_all(oe_expert_cache *c) {
    oe_forget_guesses(c);
    for (int i = 0; i < c->layers; i++) {
        for (int e = 0; e < c->layer[i]->experts; e++) {
            for (int k = 0; k < c->layer[i]->matrices; k++) {
                const unsigned char *state = &c->layer[i]->matrix[k]->state[e];
                while (*state == OE_QUEUED || *state == OE_READING) { // of a guess, or a step that was given up
                    pthread_cond_wait(&c->done, &c->lock);
                }
            }
            if (c->layer[i]->expert[e].held) {
                oe_drop_expert(c, c->layer[i], e);
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
    oe_expert_counts counts = c->counts;
    counts.reading = c->asked.waiting + c->guessed.waiting + (size_t)c->reading;
    pthread_mutex_unlock(&c->lock);
    return counts;
}

static oe_expert_layer *layer_of(oe_expert_cache *c, int block, int experts) {
    if (c->layers && c->layer[c->layers - 1]->block == block) {
        return c->layer[c->layers - 1]->experts == experts ? c->layer[c->layers - 1] : NULL;
    }
    oe_expert_layer **grown = realloc(c->layer, ((size_t)c->layers + 1) * sizeof *grown);
    c->layer = grown ? grown : c->layer;
    oe_expert_layer *made = calloc(1, sizeof *made);
    if (made) {
        made->expert = calloc((size_t)experts, sizeof *made->expert);
    }
    if (!grown || !made || !made->expert) {
        free(made ? made->expert : NULL);
        free(made);
        return NULL;
    }
    made->block = block, made->place = c->layers, made->experts = experts;
    made->waited = ~0U; // its first step is a visit, even if all was read ahead
    for (int i = 0; i < OE_MOST_RANKS; i++) {
        made->trust[i] = TRUSTED;
    }
    c->layer[c->layers++] = made;
    c->now = c->layer[0];
    return made;
}

static bool grow(const oe_expert_cache *c, oe_part_queue *q, int experts) {
    oe_expert_part *part = realloc(q->part, (c->parts + (size_t)experts) * sizeof *part);
    q->part = part ? part : q->part;
    return part;
}

oe_expert_matrix *oe_expert_cache_add(oe_expert_cache *c, int block, int experts, oe_expert_file file, int64_t offset,
                                      size_t nbytes, char *memory) {
    oe_expert_layer *l = layer_of(c, block, experts);
    const bool room = grow(c, &c->asked, experts) && grow(c, &c->guessed, experts);
    oe_expert_matrix *m = calloc(1, sizeof *m);
    unsigned char *state = calloc((size_t)experts, 1);
    if (!l || !room || !m || !state || l->matrices == OE_MOST_MATRICES) {
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
    while (c->readers < threads && c->readers < OE_MOST_READERS &&
           pthread_create(&c->reader[c->readers], NULL, oe_read_experts, c) == 0) {
        c->readers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (c->readers == 0) {
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
    for (int i = 0; i < c->readers; i++) {
        pthread_join(c->reader[i], NULL);
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
    free(c->asked.part);
    free(c->guessed.part);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->queued);
    pthread_cond_destroy(&c->done);
    free(c);
}
