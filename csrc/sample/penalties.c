#include "sample/penalties.h"

#include <stdlib.h>
#include <string.h>

/* -- memory ------------------------------------------------------------------------------------------------------ */

static bool reserve_touched(oe_penalties *p, int32_t more) {
    if (!p->slot && !(p->slot = calloc((size_t)p->n_vocab, sizeof *p->slot))) {
        return false;
    }
    if (p->n_touched + more <= p->touched_capacity) {
        return true;
    }
    int64_t capacity = 2 * ((int64_t)p->n_touched + more);
    capacity = capacity < p->n_vocab ? capacity : p->n_vocab;
    const size_t size = (size_t)capacity * sizeof(int32_t);
    void *grown[5] = {p->touched, p->count, p->bias, p->value, p->repeat};
    bool done = true;
    for (int i = 0; i < 5; i++) {
        void *moved = realloc(grown[i], size);
        grown[i] = moved ? moved : grown[i];
        done = done && moved;
    }
    p->touched = grown[0], p->count = grown[1], p->bias = grown[2], p->value = grown[3], p->repeat = grown[4];
    p->touched_capacity = done ? (int32_t)capacity : p->touched_capacity;
    return done;
}

static bool reserve_recent(oe_penalties *p, int64_t more) {
    int64_t needed = p->n_recent + more;
    needed = needed < p->window ? needed : p->window;
    if (needed <= p->recent_capacity) {
        return true;
    }
    /* Not a ring before it is full: nothing to unroll. */
    const int64_t capacity = 2 * needed < p->window ? 2 * needed : p->window;
    int32_t *recent = realloc(p->recent, (size_t)capacity * sizeof *recent);
    if (recent) {
        p->recent = recent;
        p->recent_capacity = (int32_t)capacity;
    }
    return recent != NULL;
}

/* -- one token --------------------------------------------------------------------------------------------------- */

static int32_t touch(oe_penalties *p, int32_t token) {
    if (!p->slot[token]) {
        p->touched[p->n_touched] = token;
        p->count[p->n_touched] = 0;
        p->bias[p->n_touched] = 0.0f;
        p->repeat[p->n_touched] = 0;
        p->slot[token] = ++p->n_touched;
    }
    return p->slot[token] - 1;
}

static void forget(oe_penalties *p, int32_t token) {
    const int32_t i = p->slot[token] - 1;
    if (--p->count[i] > 0 || i < p->n_bias) {
        return;
    }
    const int32_t last = --p->n_touched;
    p->touched[i] = p->touched[last];
    p->count[i] = p->count[last];
    p->bias[i] = p->bias[last];
    p->slot[p->touched[i]] = i + 1;
    p->slot[token] = 0;
}

static void remember(oe_penalties *p, int32_t token) {
    if (p->window > 0 && p->n_recent == p->window) {
        const int32_t oldest = p->recent[p->recent_start];
        p->recent[p->recent_start] = token;
        p->recent_start = p->recent_start + 1 == p->window ? 0 : p->recent_start + 1;
        p->count[touch(p, token)] += 1; /* first, so that a token which leaves and enters keeps its slot */
        forget(p, oldest);
        return;
    }
    if (p->window > 0) {
        p->recent[p->n_recent++] = token;
    }
    p->count[touch(p, token)] += 1;
}

/* -- the whole --------------------------------------------------------------------------------------------------- */

bool oe_penalties_init(oe_penalties *p, int32_t n_vocab, int32_t window, const int32_t *bias_id, const float *bias,
                       int32_t n_bias) {
    memset(p, 0, sizeof *p);
    p->n_vocab = n_vocab;
    p->window = window;
    if (n_bias && !reserve_touched(p, n_bias)) {
        return false;
    }
    p->n_bias = n_bias;
    for (int32_t i = 0; i < n_bias; i++) {
        p->bias[touch(p, bias_id[i])] = bias[i];
    }
    return true;
}

bool oe_penalties_follow(oe_penalties *p, const oe_penalties *from) {
    const int32_t more = from->n_touched - from->n_bias;
    if (more && !reserve_touched(p, more)) {
        return false;
    }
    if (from->n_recent) {
        p->recent = malloc((size_t)from->recent_capacity * sizeof *p->recent);
        if (!p->recent) {
            return false;
        }
        memcpy(p->recent, from->recent, (size_t)from->recent_capacity * sizeof *p->recent);
        p->recent_capacity = from->recent_capacity;
        p->n_recent = from->n_recent;
        p->recent_start = from->recent_start;
    }
    for (int32_t i = 0; i < from->n_touched; i++) {
        p->count[touch(p, from->touched[i])] = from->count[i];
    }
    return true;
}

void oe_penalties_free(oe_penalties *p) {
    void *owned[] = {p->slot, p->touched, p->count, p->bias, p->value, p->repeat, p->recent};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        free(owned[i]);
    }
    memset(p, 0, sizeof *p);
}

void oe_penalties_reset(oe_penalties *p) {
    for (int32_t i = p->n_bias; i < p->n_touched; i++) {
        p->slot[p->touched[i]] = 0;
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        p->count[i] = 0;
    }
    p->n_touched = p->n_bias;
    p->n_recent = p->recent_start = 0;
}

bool oe_penalties_repeats(oe_penalties *p, int32_t token, int32_t length) {
    if (!reserve_touched(p, 1)) {
        return false;
    }
    const int32_t before = p->n_touched;
    const int32_t i = touch(p, token);
    p->n_passing += p->n_touched > before;
    p->repeats = true;
    p->repeat[i] = length > p->repeat[i] ? length : p->repeat[i];
    return true;
}

void oe_penalties_end_step(oe_penalties *p) {
    if (!p->repeats) {
        return;
    }
    for (; p->n_passing; p->n_passing--) {
        p->slot[p->touched[--p->n_touched]] = 0;
    }
    memset(p->repeat, 0, (size_t)p->n_touched * sizeof *p->repeat);
    p->repeats = false;
}

bool oe_penalties_accept(oe_penalties *p, const int32_t *tokens, int64_t n) {
    if (p->window > 0 && n > p->window) { /* the others would be forgotten before the call ends */
        tokens += n - p->window;
        n = p->window;
    }
    const int32_t untouched = p->n_vocab - p->n_touched;
    if (!reserve_touched(p, n < untouched ? (int32_t)n : untouched) || (p->window > 0 && !reserve_recent(p, n))) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        remember(p, tokens[i]);
    }
    return true;
}
