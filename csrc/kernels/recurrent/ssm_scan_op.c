#include "kernels/recurrent/ssm_scan_op.h"

#include <string.h>

#include "base/target_clones.h"
#include "kernels/exp_f32.h"
#include "kernels/recurrent/lanes16.h"
#include "kernels/recurrent/segments.h"

#define ROWS 16 /* of a state at a time: they stay in the L1 cache while a segment's tokens pass */

/* One token's operands for one head. */
typedef struct {
    const float *x, *b, *c;
    float dt, decay;
    float *to;
} token;

/* One row of the state: decayed, moved by x, then read. */
static inline float advance(float *restrict h, const token *in, int64_t d_state, float moved) {
    float sums[OE_LANES] = {0};
    const float *restrict b = in->b, *restrict c = in->c;
    for (int64_t i = 0; i < d_state; i += OE_LANES) {
        for (int l = 0; l < OE_LANES; l++) {
            h[i + l] = h[i + l] * in->decay + b[i + l] * moved;
            sums[l] += h[i + l] * c[i + l];
        }
    }
    return oe_sum_lanes(sums);
}

OE_TARGET_CLONES
static void advance_rows(float *state, const token *in, int64_t d_state, int64_t count) {
    for (int64_t j = 0; j < count; j++) {
        in->to[j] = advance(state + j * d_state, in, d_state, in->dt * in->x[j]);
    }
}

static const float *row_of(const struct ggml_tensor *t, int64_t head, int64_t row) {
    return (const float *)((const char *)t->data + (size_t)head * t->nb[1] + (size_t)row * t->nb[2]);
}

/* The rows [from, from + count) of one head's state in one segment. */
static void run(struct ggml_tensor *dst, const oe_segment *s, int64_t head, int64_t from, int64_t count) {
    const struct ggml_tensor *steps = dst->src[1], *b = dst->src[3];
    const int64_t d_state = b->ne[0], dim = dst->ne[0], group = head / (dst->ne[1] / b->ne[1]);
    const size_t at = (size_t)((head * dim + from) * d_state), nbytes = (size_t)(count * d_state) * sizeof(float);
    const float a = ((const float *)dst->src[2]->data)[head];
    float state[ROWS * OE_SSM_STATE];
    if (s->read == NULL) {
        memset(state, 0, nbytes);
    } else {
        memcpy(state, s->read + at, nbytes);
    }
    for (int64_t t = 0; t < s->n; t++) {
        const int64_t row = s->rows[t];
        const float dt = *(const float *)((const char *)steps->data + (size_t)head * steps->nb[0] +
                                          (size_t)row * steps->nb[1]);
        const token in = {row_of(dst->src[0], head, row) + from,
                          row_of(b, group, row),
                          row_of(dst->src[4], group, row),
                          dt,
                          oe_exp_f32(dt * a),
                          (float *)dst->data + (row * dst->ne[1] + head) * dim + from};
        advance_rows(state, &in, d_state, count);
    }
    if (s->write != NULL) {
        memcpy(s->write + at, state, nbytes);
    }
}

void oe_ssm_scan_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    const int64_t dim = dst->ne[0], blocks = (dim + ROWS - 1) / ROWS, all = dst->ne[1] * blocks;
    (void)unused;
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const int64_t head = i / blocks, from = i % blocks * ROWS, count = dim - from < ROWS ? dim - from : ROWS;
        for (int64_t m = 0; m < dst->src[6]->ne[1]; m++) {
            const oe_segment s = oe_segment_at(dst->src[5], dst->src[6], dst->src[7], dst->src[8], m);
            if (s.n > 0) {
                run(dst, &s, head, from, count);
            }
        }
    }
}
