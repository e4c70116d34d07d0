#include "kernels/recurrent/causal_conv_op.h"

#include <string.h>

#include "base/target_clones.h"
#include "kernels/recurrent/segments.h"

#define BLOCK 64 /* channels at a time, so that their taps stay in registers or the L1 cache */

/* What one block of channels is computed from. */
typedef struct {
    const char *x;
    size_t x_row;
    int64_t from, count, channels, taps;
    float weights[OE_CONV_TAPS][BLOCK];
} block;

static const float zeros[BLOCK];

/* The block's inputs at `t` in a segment: a row of x, or for t < 0 what the state has of the inputs before. */
static const float *column(const block *b, const oe_segment *s, int64_t t) {
    if (t >= 0) {
        return (const float *)(b->x + (size_t)s->rows[t] * b->x_row) + b->from;
    }
    return s->read == NULL ? zeros : s->read + (b->taps - 1 + t) * b->channels + b->from;
}

OE_TARGET_CLONES
static void convolve(const block *b, const oe_segment *s, float *to) {
    for (int64_t t = 0; t < s->n; t++) {
        float sums[BLOCK] = {0};
        for (int64_t k = 0; k < b->taps; k++) {
            const float *in = column(b, s, t - b->taps + 1 + k), *weights = b->weights[k];
            for (int64_t c = 0; c < b->count; c++) {
                sums[c] += weights[c] * in[c];
            }
        }
        memcpy(to + s->rows[t] * b->channels + b->from, sums, (size_t)b->count * sizeof(float));
    }
    for (int64_t k = 0; s->write != NULL && k < b->taps - 1; k++) {
        memcpy(s->write + k * b->channels + b->from, column(b, s, s->n - b->taps + 1 + k),
               (size_t)b->count * sizeof(float));
    }
}

void oe_causal_conv_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    const struct ggml_tensor *x = dst->src[0], *weight = dst->src[1], *bounds = dst->src[3];
    const int64_t channels = dst->ne[0], taps = weight->ne[0], all = (channels + BLOCK - 1) / BLOCK;
    (void)unused;
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        block b = {(const char *)x->data, x->nb[1], i * BLOCK, 0, channels, taps, {{0}}};
        b.count = channels - b.from < BLOCK ? channels - b.from : BLOCK;
        for (int64_t k = 0; k < taps; k++) {
            for (int64_t c = 0; c < b.count; c++) {
                b.weights[k][c] = ((const float *)weight->data)[(b.from + c) * taps + k];
            }
        }
        for (int64_t m = 0; m < bounds->ne[1]; m++) {
            const oe_segment s = oe_segment_at(dst->src[2], bounds, dst->src[4], dst->src[5], m);
            if (s.n > 0) {
                convolve(&b, &s, (float *)dst->data);
            }
        }
    }
}
