/* Scores of a tile become weights (attention.h). Included by files that are compiled once for each instruction set. */
#ifndef OE_ATTENTION_SOFTMAX_H
#define OE_ATTENTION_SOFTMAX_H

#include <stdbool.h>

#include "kernels/attention_cells.h"

/* Scores and their maximum are logarithms to base 2 from here on: scale and cap have log2(e) in them. */
INLINE lanes scaled(float scale, float cap, lanes score) {
    if (cap == 0.0f) {
        return lanes_mul(score, lanes_set(scale));
    }
    return lanes_mul(lanes_tanh(lanes_mul(score, lanes_set(scale / cap))), lanes_set(cap));
}

INLINE void fill(float *to, int64_t from, int64_t end, float value) {
    for (int64_t i = from; i < end; i++) {
        to[i] = value;
    }
}

/* Some queries in one tile of cells. */
typedef struct scores {
    float *partial[OE_QUERIES];
    int64_t from[OE_QUERIES], to[OE_QUERIES]; /* cells that each sees */
    float scale[OE_QUERIES], shrink[OE_LANES];
    _Alignas(64) float score[OE_QUERIES][TILE];
} scores;

/* The whole vectors around the cells that a query sees. */
INLINE int64_t first_of(const scores *s, int i) { return s->from[i] / OE_LANES * OE_LANES; }
INLINE int64_t last_of(const scores *s, int i) { return (s->to[i] + OE_LANES - 1) / OE_LANES * OE_LANES; }

INLINE bool is_plain(const scores *s, int i, float cap) {
    return s->from[i] == 0 && s->to[i] == TILE && cap == 0.0f && s->scale[i] > 0.0f;
}

/* Scales and caps the scores of a query, and gives cells that it does not see no weight. */
INLINE void scale_some(scores *s, int i, float cap) {
    const int64_t begin = first_of(s, i), end = last_of(s, i);
    float *score = s->score[i];
    fill(score, begin, s->from[i], 0.0f);
    fill(score, s->to[i], end, 0.0f);
    for (int64_t c = begin; c < end; c += OE_LANES) {
        lanes_store(score + c, scaled(s->scale[i], cap, lanes_load(score + c)));
    }
    fill(score, begin, s->from[i], -INFINITY); /* only now, since a cap or a negative scale would change -INFINITY */
    fill(score, s->to[i], end, -INFINITY);
    s->scale[i] = 1.0f;
}

/* score[begin, end), whole vectors, becomes 2^(score * scale - max). */
INLINE void weigh_vectors(float *score, int64_t begin, int64_t end, float scale, float shrink, float *partial) {
    const lanes by = lanes_set(scale), least = lanes_sub(lanes_set(0.0f), lanes_load(partial + MAX_AT));
    lanes sum = lanes_mul(lanes_load(partial + SUM_AT), lanes_set(shrink));
#pragma GCC unroll 4
    for (int64_t c = begin; c < end; c += OE_LANES) {
        const lanes weight = lanes_exp2(lanes_fma(lanes_load(score + c), by, least));
        lanes_store(score + c, weight);
        sum = lanes_add(sum, weight);
    }
    lanes_store(partial + SUM_AT, sum);
}

/* From here on the rounding of a score times its scale counts: weigh_vectors rounds only the difference to `max`, which
 * was rounded before, so that both are rounded alike. */
#define ROUNDED_FROM 0x1p22f

/* Turns scores of the queries [at, at + queries) into 2^(score - max), after updating max with them: shrink becomes
 * 2^(old max - max). Nothing branches on values that change often: maxima do, and at random. */
INLINE void weigh(const int queries, float cap, scores *s, int at) {
    float change[OE_LANES] = {0};
    bool plain[OE_QUERIES];
#pragma GCC unroll 8
    for (int i = at; i < at + queries; i++) {
        plain[i] = is_plain(s, i, cap);
        if (!plain[i]) {
            scale_some(s, i, cap);
        }
        if (s->from[i] < s->to[i]) {
            const int64_t begin = plain[i] ? 0 : first_of(s, i), end = plain[i] ? TILE : last_of(s, i);
            lanes most = lanes_load(s->score[i] + begin);
#pragma GCC unroll 4
            for (int64_t c = begin + OE_LANES; c < end; c += OE_LANES) {
                most = lanes_max(most, lanes_load(s->score[i] + c));
            }
            const float before = s->partial[i][MAX_AT], largest = lanes_largest(most) * s->scale[i];
            const float max = largest > before ? largest : before;
            change[i - at] = before - max;
            lanes_store(s->partial[i] + MAX_AT, lanes_set(max));
            if (plain[i] && !(fabsf(max) < ROUNDED_FROM)) {
                scale_some(s, i, cap);
            }
        }
    }
    lanes_store(change, lanes_exp2(lanes_load(change)));
    memcpy(s->shrink + at, change, (size_t)queries * sizeof *change);
#pragma GCC unroll 8
    for (int i = at; i < at + queries; i++) {
        const float shrink = s->shrink[i];
        if (plain[i]) {
            weigh_vectors(s->score[i], 0, TILE, s->scale[i], shrink, s->partial[i]);
        } else if (s->from[i] < s->to[i]) {
            weigh_vectors(s->score[i], first_of(s, i), last_of(s, i), s->scale[i], shrink, s->partial[i]);
        }
    }
}

#endif
