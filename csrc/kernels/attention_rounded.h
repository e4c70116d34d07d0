/* Queries and keys as whole numbers of 16 bits (attention.h): the numbers of a row or cell have a factor, with which
 * their length is ROUNDED_LENGTH. So the product of two is below 2^31 by the inequality of Cauchy and Schwarz, and a
 * score is off by about as much as by storing keys in F16. Included by files that are compiled once for each
 * instruction set. */
#ifndef OE_ATTENTION_ROUNDED_H
#define OE_ATTENTION_ROUNDED_H

#include "base/pairs16.h"
#include "kernels/attention_softmax.h"

#define ROUNDED_LENGTH 32766.0f
#define LEAST_ROUNDED 1e-15f /* what is shorter counts as so long, and keeps fewer digits */

/* Keys in F32 stay floats, and so do their queries. */
INLINE bool is_rounded(const int type) { return type != OE_ATTENTION_F32; }

/* Where a piece's rounded queries and keys are kept. */
typedef struct rounded {
    int64_t stride;                   /* numbers from one query or key to the next */
    int16_t *queries, *keys;          /* [OE_MOST_QUERIES][stride], [TILE][stride] */
    float *query_factor, *key_factor; /* with which rounded numbers are the given ones */
    float *floats;                    /* [OE_LANES][stride], while rows are rounded */
} rounded;

INLINE rounded rounded_in(const oe_attention_piece *p) {
    rounded r = {.stride = (p->keys.dim + OE_PAIRED - 1) / OE_PAIRED * OE_PAIRED};
    r.query_factor = p->scratch;
    r.key_factor = r.query_factor + OE_MOST_QUERIES;
    r.queries = (int16_t *)(void *)(r.key_factor + TILE);
    r.keys = r.queries + OE_MOST_QUERIES * r.stride;
    r.floats = (float *)(void *)(r.keys + TILE * r.stride);
    return r;
}

/* Unpacks n rows of `dim` numbers, fills them up with 0, and rounds them. */
INLINE void round_rows(const int type, const int n, const char *const *row, int64_t dim, const rounded *r, int16_t *to,
                       float *factor) {
    const int64_t whole = dim / OE_LANES * OE_LANES, stride = r->stride;
    float *const floats = r->floats;
    lanes square[SUMS];
    float sum[OE_LANES] = {0}, grow[OE_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
        square[i] = lanes_set(0.0f);
    }
    for (int64_t d = 0; d < whole; d += OE_LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            const lanes x = load_whole(type, row[i], d);
            square[i] = lanes_fma(x, x, square[i]);
            lanes_store(floats + i * stride + d, x);
        }
    }
    for (int64_t d = whole; d < stride; d += OE_LANES) {
        for (int i = 0; i < n; i++) {
            const lanes x = d < dim ? load(type, row[i], d, dim - d) : lanes_set(0.0f);
            square[i] = lanes_fma(x, x, square[i]);
            lanes_store(floats + i * stride + d, x);
        }
    }
    if (n == SUMS) {
        sum_up(square, sum);
    } else {
        sum[0] = lanes_sum(square[0]);
    }
    const lanes length = lanes_sqrt(lanes_max(lanes_set(LEAST_ROUNDED * LEAST_ROUNDED), lanes_load(sum)));
    lanes_store(grow, lanes_div(lanes_set(ROUNDED_LENGTH), length));
    lanes_store(sum, lanes_mul(length, lanes_set(1.0f / ROUNDED_LENGTH)));
    memcpy(factor, sum, (size_t)n * sizeof *factor);
    for (int i = 0; i < n; i++) {
        const lanes by = lanes_set(grow[i]);
        for (int64_t d = i * stride; d < (i + 1) * stride; d += OE_PAIRED) {
            pairs_store(to + d, pairs_round(lanes_load(floats + d), lanes_load(floats + d + OE_LANES), by));
        }
    }
}

INLINE void round_queries(const oe_attention_piece *p, const rounded *r) {
    for (int64_t i = 0; i < p->n_queries; i++) {
        const char *query = (const char *)p->queries[i].at;
        round_rows(OE_ATTENTION_F32, 1, &query, p->keys.dim, r, r->queries + i * r->stride, r->query_factor + i);
    }
}

/* Those of the cells [low, high) of a tile, of which `cell` is the first, and of some around them. */
INLINE void round_keys(const int type, const oe_attention_piece *p, const int32_t *cell, int64_t low, int64_t high,
                       const rounded *r) {
    for (int64_t at = low / SUMS * SUMS; at < high; at += SUMS) {
        const char *key[SUMS];
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) {
            /* Padding repeats the nearest cell; unused. */
            const int64_t c = at + i < low ? low : at + i < high ? at + i : high - 1;
            key[i] = cell_of(&p->keys, cell[c]);
            prefetch(&p->values, cell[c]);
        }
        round_rows(type, SUMS, key, p->keys.dim, r, r->keys + at * r->stride, r->key_factor + at);
    }
}

/* What the scores of query i are multiplied with. */
INLINE float scale_of(const int type, const oe_attention_piece *p, const rounded *r, int64_t i) {
    return (is_rounded(type) ? p->scale * r->query_factor[i] : p->scale) * OE_LOG2E;
}

/* The cells [low, high) of the tile from cell `first` on that any query sees; false where that is nothing. */
INLINE bool look_at(const oe_attention_piece *p, int64_t first, int64_t *low, int64_t *high) {
    *low = TILE, *high = 0;
    for (int64_t i = 0; i < p->n_queries; i++) {
        const int64_t from = p->queries[i].first - first, to = p->queries[i].end - first;
        if (from < to && from < TILE && to > 0) {
            *low = from < 0 ? 0 : from < *low ? from : *low;
            *high = to > TILE ? TILE : to > *high ? to : *high;
        }
    }
    return *low < *high;
}

#endif
