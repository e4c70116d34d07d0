/* Scores of a tile become weights (attention.h). Included by files that are compiled once for each instruction set. */
#ifndef OE_ATTENTION_SOFTMAX_H
#define OE_ATTENTION_SOFTMAX_H

#include "kernels/attention_cells.h"

INLINE lanes scaled(const oe_attention_piece *p, lanes score) {
    if (p->cap == 0.0f) {
        return lanes_mul(score, lanes_set(p->scale));
    }
    return lanes_mul(lanes_tanh(lanes_mul(score, lanes_set(p->scale / p->cap))), lanes_set(p->cap));
}

INLINE void fill(float *to, int64_t from, int64_t end, float value) {
    for (int64_t i = from; i < end; i++) {
        to[i] = value;
    }
}

/* score[begin, end), whole vectors, becomes exp(score - max), after updating max. Returns exp(old max - max). */
INLINE float weigh_vectors(float *score, int64_t begin, int64_t end, float *partial) {
    const lanes before = lanes_load(partial + MAX_AT);
    lanes most = before, sum = lanes_load(partial + SUM_AT);
    float factor[OE_LANES] = {1.0f};
    for (int64_t i = begin; i < end; i += OE_LANES) {
        most = lanes_max(most, lanes_load(score + i));
    }
    most = lanes_largest_everywhere(most);
    const lanes change = lanes_sub(before, most);
    float changed[OE_LANES];
    lanes_store(changed, change);
    if (changed[0] != 0.0f) { /* of 0 it is 1 */
        const lanes shrink = lanes_exp(change);
        sum = lanes_mul(sum, shrink);
        lanes_store(factor, shrink);
        lanes_store(partial + MAX_AT, most);
    }
    for (int64_t i = begin; i < end; i += OE_LANES) {
        const lanes weight = lanes_exp(lanes_sub(lanes_load(score + i), most));
        lanes_store(score + i, weight);
        sum = lanes_add(sum, weight);
    }
    lanes_store(partial + SUM_AT, sum);
    return factor[0];
}

/* Turns scores of the cells [low, high) into exp(score - max), after updating max with them. Returns
 * exp(old max - max). */
INLINE float weigh(const oe_attention_piece *p, float *score, int64_t low, int64_t high, float *partial) {
    const int64_t begin = low / OE_LANES * OE_LANES, end = (high + OE_LANES - 1) / OE_LANES * OE_LANES;
    if (low == 0 && high == TILE && p->cap == 0.0f) { /* as most are */
        const lanes scale = lanes_set(p->scale);
#pragma GCC unroll 4
        for (int64_t i = 0; i < TILE; i += OE_LANES) {
            lanes_store(score + i, lanes_mul(lanes_load(score + i), scale));
        }
        return weigh_vectors(score, 0, TILE, partial);
    }
    fill(score, begin, low, 0.0f);
    fill(score, high, end, 0.0f);
    for (int64_t i = begin; i < end; i += OE_LANES) {
        lanes_store(score + i, scaled(p, lanes_load(score + i)));
    }
    fill(score, begin, low, -INFINITY); /* only now, since a cap or a negative scale would change -INFINITY */
    fill(score, high, end, -INFINITY);
    return weigh_vectors(score, begin, end, partial);
}

#endif
