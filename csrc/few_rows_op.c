#include "few_rows_op.h"

#include <stdbool.h>
#include <string.h>

#include "ggml.h"
#include "shares.h"

#define LINE 64 /* bytes of a cache line */

static int64_t quads_of(const oe_few_kernel *kernel, int64_t k) {
    return (k / kernel->block + OE_QUAD - 1) / OE_QUAD;
}

static int64_t acts_bytes(const oe_few_kernel *kernel, int64_t k, int64_t rows) {
    return quads_of(kernel, k) * rows * OE_QUAD * (int64_t)kernel->act_bytes;
}

int64_t oe_few_acts_size(const oe_few_kernel *kernel, int64_t k, int64_t rows) {
    return acts_bytes(kernel, k, rows) + 2 * LINE;
}

/* Of groups of weight rows; behind the activations. */
static oe_shares *taken_groups(const oe_few_kernel *kernel, const struct ggml_tensor *acts, int64_t k, int64_t rows) {
    const uintptr_t end = (uintptr_t)acts->data + (uintptr_t)acts_bytes(kernel, k, rows);
    return (oe_shares *)((end + LINE - 1) / LINE * LINE);
}

/* Words side by side that are in the same place of their blocks. */
static void interleave(const char *acts, size_t act_bytes, char *to) {
    for (size_t at = 0; at < act_bytes; at += 4) {
        for (size_t b = 0; b < OE_QUAD; b++) {
            memcpy(to + at * OE_QUAD + 4 * b, acts + b * act_bytes + at, 4);
        }
    }
}

static void quantize_quad(const oe_few_kernel *kernel, const float *x, int64_t blocks, bool alone, char *to) {
    const size_t size = kernel->act_bytes;
    union {
        oe_act256 of_256[OE_QUAD];
        oe_act32 of_32[OE_QUAD];
        char bytes[OE_QUAD * sizeof(oe_act256)];
    } acts = {.bytes = {0}};
    for (int64_t b = 0; b < OE_QUAD && b < blocks; b++) {
        kernel->quantize(x + b * kernel->block, acts.bytes + (size_t)b * size);
    }
    if (alone) {
        interleave(acts.bytes, size, to);
    } else {
        memcpy(to, acts.bytes, OE_QUAD * size);
    }
}

void oe_few_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_few_kernel *kernel = userdata;
    const struct ggml_tensor *x = dst->src[0];
    const int64_t k = x->ne[0], rows = x->ne[1], all = quads_of(kernel, k) * rows;
    const bool alone = rows == 1 && kernel->multiply_one;
    if (ith == 0) {
        atomic_init(taken_groups(kernel, dst, k, rows), 0);
    }
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const char *row = (const char *)x->data + (size_t)(i % rows) * x->nb[1];
        const int64_t block = i / rows * OE_QUAD;
        quantize_quad(kernel, (const float *)row + block * kernel->block, k / kernel->block - block, alone,
                      (char *)dst->data + (size_t)(i * OE_QUAD) * kernel->act_bytes);
    }
}

void oe_few_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_few_kernel *kernel = userdata;
    const struct ggml_tensor *weights = dst->src[0], *acts = dst->src[1];
    const oe_few_product product = {
        .weights = weights->data,
        .row_bytes = weights->nb[1],
        .acts = acts->data,
        .blocks = weights->ne[0] / kernel->block,
        .m = dst->ne[0],
        .rows = dst->ne[1],
        .out = dst->data,
    };
    void (*const multiply)(const oe_few_product *p, int64_t first, int64_t last) =
        product.rows == 1 && kernel->multiply_one ? kernel->multiply_one : kernel->multiply;
    const int64_t groups = (product.m + OE_FEW_GROUP - 1) / OE_FEW_GROUP;
    oe_shares *taken = taken_groups(kernel, acts, weights->ne[0], product.rows);
    int64_t first, last;
    (void)ith;
    while (oe_shares_take(taken, groups, nth, &first, &last)) {
        const int64_t end = last * OE_FEW_GROUP;
        multiply(&product, first * OE_FEW_GROUP, end < product.m ? end : product.m);
    }
    oe_shares_leave(taken, groups, nth);
}
