#include "sample/penalties.h"

#include <stdlib.h>
#include <string.h>

/* -- memory ------------------------------------------------------------------------------------------------------ */

static bool reserve_touched(oe_penalties *h, int32_t more) {
    if (!h->slot && !(h->slot = calloc((size_t)h->n_vocab, sizeof *h->slot))) {
        return false;
    }
    if (h->n_touched + more <= h->touched_capacity) {
        return true;
    }
    int64_t capacity = 2 * ((int64_t)h->n_touched + more);
    capacity = capacity < h->n_vocab ? capacity : h->n_vocab;
    const size_t size = (size_t)capacity * sizeof(int32_t);
    void *grown[4] = {h->touched, h->count, h->bias, h->value};
    bool done = true;
    for (int i = 0; i < 4; i++) {
        void *moved = realloc(grown[i], size);
        grown[i] = moved ? moved : grown[i];
        done = done && moved;
    }
    h->touched = grown[0], h->count = grown[1], h->bias = grown[2], h->value = grown[3];
    h->touched_capacity = done ? (int32_t)capacity : h->touched_capacity;
    return done;
}

static bool reserve_recent(oe_penalties *h, int64_t more) {
    int64_t needed = h->n_recent + more;
    needed = needed < h->window ? needed : h->window;
    if (needed <= h->recent_capacity) {
        return true;
    }
    /* Not a ring before it is full: nothing to unroll. */
    const int64_t capacity = 2 * needed < h->window ? 2 * needed : h->window;
    int32_t *recent = realloc(h->recent, (size_t)capacity * sizeof *recent);
    if (recent) {
        h->recent = recent;
        h->recent_capacity = (int32_t)capacity;
    }
    return recent != NULL;
}

/* -- one token --------------------------------------------------------------------------------------------------- */

static int32_t touch(oe_penalties *h, int32_t token) {
    if (!h->slot[token]) {
        h->touched[h->n_touched] = token;
        h->count[h->n_touched] = 0;
        h->bias[h->n_touched] = 0.0f;
        h->slot[token] = ++h->n_touched;
    }
    return h->slot[token] - 1;
}

static void forget(oe_penalties *h, int32_t token) {
    const int32_t i = h->slot[token] - 1;
    if (--h->count[i] > 0 || i < h->n_bias) {
        return;
    }
    const int32_t last = --h->n_touched;
    h->touched[i] = h->touched[last];
    h->count[i] = h->count[last];
    h->bias[i] = h->bias[last];
    h->slot[h->touched[i]] = i + 1;
    h->slot[token] = 0;
}

static void remember(oe_penalties *h, int32_t token) {
    if (h->window > 0 && h->n_recent == h->window) {
        const int32_t oldest = h->recent[h->recent_start];
        h->recent[h->recent_start] = token;
        h->recent_start = h->recent_start + 1 == h->window ? 0 : h->recent_start + 1;
        h->count[touch(h, token)] += 1; /* first, so that a token which leaves and enters keeps its slot */
        forget(h, oldest);
        return;
    }
    if (h->window > 0) {
        h->recent[h->n_recent++] = token;
    }
    h->count[touch(h, token)] += 1;
}

/* -- the whole --------------------------------------------------------------------------------------------------- */

bool oe_penalties_init(oe_penalties *h, int32_t n_vocab, int32_t window, const int32_t *bias_id, const float *bias,
                     int32_t n_bias) {
    memset(h, 0, sizeof *h);
    h->n_vocab = n_vocab;
    h->window = window;
    if (n_bias && !reserve_touched(h, n_bias)) {
        return false;
    }
    h->n_bias = n_bias;
    for (int32_t i = 0; i < n_bias; i++) {
        h->bias[touch(h, bias_id[i])] = bias[i];
    }
    return true;
}

bool oe_penalties_follow(oe_penalties *h, const oe_penalties *from) {
    const int32_t more = from->n_touched - from->n_bias;
    if (more && !reserve_touched(h, more)) {
        return false;
    }
    if (from->n_recent) {
        h->recent = malloc((size_t)from->recent_capacity * sizeof *h->recent);
        if (!h->recent) {
            return false;
        }
        memcpy(h->recent, from->recent, (size_t)from->recent_capacity * sizeof *h->recent);
        h->recent_capacity = from->recent_capacity;
        h->n_recent = from->n_recent;
        h->recent_start = from->recent_start;
    }
    for (int32_t i = 0; i < from->n_touched; i++) {
        h->count[touch(h, from->touched[i])] = from->count[i];
    }
    return true;
}

void oe_penalties_free(oe_penalties *h) {
    void *owned[] = {h->slot, h->touched, h->count, h->bias, h->value, h->recent};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        free(owned[i]);
    }
    memset(h, 0, sizeof *h);
}

void oe_penalties_reset(oe_penalties *h) {
    for (int32_t i = h->n_bias; i < h->n_touched; i++) {
        h->slot[h->touched[i]] = 0;
    }
    for (int32_t i = 0; i < h->n_bias; i++) {
        h->count[i] = 0;
    }
    h->n_touched = h->n_bias;
    h->n_recent = h->recent_start = 0;
}

bool oe_penalties_accept(oe_penalties *h, const int32_t *tokens, int64_t n) {
    if (h->window > 0 && n > h->window) { /* the others would be forgotten before the call ends */
        tokens += n - h->window;
        n = h->window;
    }
    const int32_t untouched = h->n_vocab - h->n_touched;
    if (!reserve_touched(h, n < untouched ? (int32_t)n : untouched) || (h->window > 0 && !reserve_recent(h, n))) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        remember(h, tokens[i]);
    }
    return true;
}
