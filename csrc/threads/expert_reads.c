#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "threads/expert_layers.h"

/* -- one part ------------------------------------------------------------------------------------------------------ */

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
// they are, also while a product uses them: the same bytes. The file may end within the last page.
static int read_part(const oe_expert_cache *cache, oe_expert_part p) {
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

/* -- what is in memory --------------------------------------------------------------------------------------------- */

void oe_drop_expert(oe_expert_cache *c, oe_expert_layer *l, int e) {
    for (int i = 0; i < l->matrices; i++) {
        oe_expert_matrix *m = l->matrix[i];
        const uintptr_t at = (uintptr_t)m->memory + (size_t)e * m->nbytes, page = c->page;
        const uintptr_t begin = (at + page - 1) / page * page, end = (at + m->nbytes) / page * page;
        if (begin < end) { // pages at the ends hold bytes of neighbours, too
            madvise((void *)begin, end - begin, MADV_DONTNEED);
        }
        m->state[e] = OE_ABSENT;
    }
    l->expert[e].held = l->expert[e].unused = false;
    c->held -= l->nbytes;
}

static bool can_drop(const oe_expert_layer *l, int e) {
    for (int i = 0; i < l->matrices; i++) {
        if (l->matrix[i]->state[e] == OE_QUEUED || l->matrix[i]->state[e] == OE_READING) {
            return false;
        }
    }
    return l->expert[e].held;
}

// How many layers will probably be computed before the next use.
static float distance(const oe_expert_cache *c, const oe_expert_layer *l, int e) {
    const int ahead = (l->place - c->now->place - 1 + c->layers) % c->layers;
    const float used = l->expert[e].used;
    return (float)ahead + (float)c->layers * (1 / (used > 1e-6F ? used : 1e-6F) - 1);
}

static bool is_guessed(const oe_expert_cache *c, const oe_expert_layer *l, int e) {
    return l == c->next && l->guess && l->expert[e].guess == l->guess;
}

// Drops the expert whose next use is farthest. False where there is none.
static bool drop_farthest(oe_expert_cache *c, bool for_guess) {
    oe_expert_layer *of = NULL;
    int victim = 0;
    float farthest = -1;
    for (int i = 0; i < c->layers; i++) {
        oe_expert_layer *l = c->layer[i];
        for (int e = 0; e < l->experts; e++) {
            const bool guessed = is_guessed(c, l, e);
            if (!can_drop(l, e) || (l == c->now && l->expert[e].round == l->round) || (for_guess && guessed)) {
                continue;
            }
            const float far = guessed ? 0 : distance(c, l, e);
            if (far > farthest) {
                of = l, victim = e, farthest = far;
            }
        }
    }
    if (of) {
        oe_drop_expert(c, of, victim);
    }
    return of != NULL;
}

bool oe_hold_expert(oe_expert_cache *c, oe_expert_layer *l, int e, bool guess) {
    if (l->expert[e].held) {
        return true;
    }
    while (c->held + l->nbytes > c->limit && drop_farthest(c, guess)) {
    }
    if (guess && c->held + l->nbytes > c->limit) {
        return false;
    }
    c->held += l->nbytes;
    l->expert[e].held = true;
    l->expert[e].unused = guess;
    c->counts.ahead += guess;
    return true;
}

/* -- what is read -------------------------------------------------------------------------------------------------- */

void oe_queue_part(oe_expert_cache *c, oe_part_queue *q, oe_expert_part p, unsigned char state) {
    q->part[(q->first + q->waiting++) % c->parts] = p;
    p.matrix->state[p.expert] = state;
}

static oe_expert_part taken(const oe_expert_cache *c, oe_part_queue *q) {
    const oe_expert_part p = q->part[q->first];
    q->first = (q->first + 1) % c->parts;
    q->waiting--;
    return p;
}

static bool is_waiting(oe_expert_part p) { return p.matrix->state[p.expert] == OE_GUESSED; }

void oe_forget_guesses(oe_expert_cache *c) {
    while (c->guessed.waiting) {
        const oe_expert_part p = taken(c, &c->guessed);
        if (is_waiting(p)) {
            p.matrix->state[p.expert] = OE_ABSENT;
        }
    }
}

// The next part to read, of those that are awaited or else of a guess. Half of the threads leave guesses alone, so that
// what is awaited soon need not wait for long.
static bool take_part(oe_expert_cache *c, oe_expert_part *p, bool *guess) {
    *guess = false;
    if (c->asked.waiting) {
        *p = taken(c, &c->asked);
        return true;
    }
    while (c->guessed.waiting && c->ahead < (c->readers + 1) / 2) {
        *p = taken(c, &c->guessed);
        if (is_waiting(*p)) { // it may have been awaited or dropped since
            if (oe_hold_expert(c, p->matrix->layer, p->expert, true)) {
                *guess = true;
                return true;
            }
            p->matrix->state[p->expert] = OE_ABSENT;
        }
    }
    return false;
}

void *oe_read_experts(void *cache) {
    oe_expert_cache *c = cache;
    oe_expert_part p;
    bool guess;
    pthread_mutex_lock(&c->lock);
    while (!c->ends) {
        if (!take_part(c, &p, &guess)) {
            pthread_cond_wait(&c->queued, &c->lock);
            continue;
        }
        p.matrix->state[p.expert] = OE_READING;
        c->reading++;
        c->ahead += guess;
        pthread_mutex_unlock(&c->lock);
        const int error = read_part(c, p);
        pthread_mutex_lock(&c->lock);
        c->reading--;
        c->ahead -= guess;
        c->error = error ? error : c->error;
        c->counts.bytes_read += p.matrix->nbytes;
        p.matrix->state[p.expert] = OE_PRESENT;
        pthread_cond_broadcast(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
