#include "kernels/recurrent/delta_net_op.h"

#include <string.h>

#include "base/target_clones.h"
#include "kernels/exp_f32.h"
#include "kernels/recurrent/lanes16.h"
#include "kernels/recurrent/segments.h"

#define COLUMNS 16 /* of a state at a time: they stay in the L1 cache while a segment's tokens pass */

/* One token's operands for one head. */
typedef struct {
    const float *q, *k, *v;
    float decay, beta;
    float *to;
} token;

/* One column of the state: decayed, corrected towards v, then read. */
static inline float advance(float *restrict s, const token *in, int64_t dk, float v) {
    float sums[OE_LANES] = {0};
    const float *restrict k = in->k, *restrict q = in->q;
    for (int64_t i = 0; i < dk; i += OE_LANES) {
        for (int l = 0; l < OE_LANES; l++) {
            s[i + l] *= in->decay;
            sums[l] += s[i + l] * k[i + l];
        }
    }
    const float delta = (v - oe_sum_lanes(sums)) * in->beta;
    memset(sums, 0, sizeof sums);
    for (int64_t i = 0; i < dk; i += OE_LANES) {
        for (int l = 0; l < OE_LANES; l++) {
            s[i + l] += delta * k[i + l];
            sums[l] += s[i + l] * q[i + l];
        }
    }
    return oe_sum_lanes(sums);
}

OE_TARGET_CLONES
static void advance_columns(float *state, const token *in, int64_t dk, int64_t count) {
    for (int64_t j = 0; j < count; j++) {
        in->to[j] = advance(state + j * dk, in, dk, in->v[j]);
    }
}

static const float *row_of(const struct ggml_tensor *t, int64_t head, int64_t row) {
    return (const float *)((const char *)t->data + (size_t)head * t->nb[1] + (size_t)row * t->nb[2]);
}

static float number_of(const struct ggml_tensor *t, int64_t head, int64_t row) {
    return *(const float *)((const char *)t->data + (size_t)head * t->nb[0] + (size_t)row * t->nb[1]);
}

/* The columns [from, from + count) of one head in one segment. */
static void run(struct ggml_tensor *dst, const oe_segment *s, int64_t head, int64_t key_head, int64_t from,
                int64_t count) {
    const int64_t dk = dst->src[0]->ne[0], dv = dst->ne[0];
    const size_t at = (size_t)((head * dv + from) * dk), nbytes = (size_t)(count * dk) * sizeof(float);
    float state[COLUMNS * OE_DELTA_NET_KEYS];
    if (s->read == NULL) {
        memset(state, 0, nbytes);
    } else {
        memcpy(state, s->read + at, nbytes);
    }
    for (int64_t t = 0; t < s->n; t++) {
        const int64_t row = s->rows[t];
        const token in = {row_of(dst->src[0], key_head, row),
                          row_of(dst->src[1], key_head, row),
                          row_of(dst->src[2], head, row) + from,
                          oe_exp_f32(number_of(dst->src[3], head, row)),
                          number_of(dst->src[4], head, row),
                          (float *)dst->data + (row * dst->ne[1] + head) * dv + from};
        advance_columns(state, &in, dk, count);
    }
    if (s->write != NULL) {
        memcpy(s->write + at, state, nbytes);
    }
}

void oe_delta_net_op(struct ggml_tensor *dst, int ith, int nth, void *grouped) {
    const int64_t dv = dst->ne[0], heads = dst->ne[1], key_heads = dst->src[0]->ne[1];
    const int64_t blocks = (dv + COLUMNS - 1) / COLUMNS, all = heads * blocks;
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const int64_t head = i / blocks, from = i % blocks * COLUMNS, count = dv - from < COLUMNS ? dv - from : COLUMNS;
        const int64_t key_head = grouped != NULL ? head / (heads / key_heads) : head % key_heads;
        for (int64_t m = 0; m < dst->src[6]->ne[1]; m++) {
            const oe_segment s = oe_segment_at(dst->src[5], dst->src[6], dst->src[7], dst->src[8], m);
            if (s.n > 0) {
                run(dst, &s, head, key_head, from, count);
            }
        }
    }
}
