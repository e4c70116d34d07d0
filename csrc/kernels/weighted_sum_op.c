#include "kernels/weighted_sum_op.h"

#include <stddef.h>
#include <stdint.h>

#include "base/target_clones.h"
#include "ggml.h"

#define PIECE 256 /* results at a time, so that the sums stay in the L1 cache */

/* to[0 .. count - 1] from rows of `stride` bytes and weights of `step` bytes. */
OE_TARGET_CLONES
static void add_rows(const char *rows, size_t stride, const char *weights, size_t step, int64_t n_rows, int64_t count,
                     float *to) {
    for (int64_t r = 0; r < n_rows; r++) {
        const float *row = (const float *)(rows + (size_t)r * stride);
        const float weight = *(const float *)(weights + (size_t)r * step);
        if (r == 0) {
            for (int64_t i = 0; i < count; i++) {
                to[i] = weight * row[i];
            }
        } else {
            for (int64_t i = 0; i < count; i++) {
                to[i] += weight * row[i];
            }
        }
    }
}

void oe_weighted_sum_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    const struct ggml_tensor *x = dst->src[0], *weights = dst->src[1];
    const int64_t m = dst->ne[0], pieces = (m + PIECE - 1) / PIECE, all = pieces * dst->ne[1];
    (void)unused;
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const int64_t token = i / pieces, from = i % pieces * PIECE, count = m - from < PIECE ? m - from : PIECE;
        add_rows((const char *)x->data + (size_t)token * x->nb[2] + (size_t)from * sizeof(float), x->nb[1],
                 (const char *)weights->data + (size_t)token * weights->nb[2], weights->nb[1], x->ne[1], count,
                 (float *)dst->data + token * m + from);
    }
}
