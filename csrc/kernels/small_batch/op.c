#include "kernels/small_batch/op.h"

#include <stdbool.h>

#include "ggml.h"
#include "kernels/small_batch/quads.h"
#include "threads/chunk_counter.h"

static int64_t acts_bytes(const oe_sb_kernel *kernel, int64_t k, int64_t rows) {
    return oe_quads_of(kernel, k) * rows * (int64_t)oe_quad_bytes(kernel);
}

/* Extra room: to align to a cache line, for the chunk counter, and for what tiles read beyond the last row. */
int64_t oe_sb_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t rows) {
    return acts_bytes(kernel, k, rows) + OE_SB_MORE * (int64_t)oe_quad_bytes(kernel) + 3 * OE_CACHE_LINE;
}

/* ggml aligns to 32 bytes; a vector of 64 should not cross a cache line. */
static char *acts_of(const struct ggml_tensor *acts) {
    return (char *)(((uintptr_t)acts->data + OE_CACHE_LINE - 1) / OE_CACHE_LINE * OE_CACHE_LINE);
}

/* The chunk counter, in groups of weight rows. */
static oe_chunk_counter *taken_groups(const oe_sb_kernel *by, const struct ggml_tensor *acts, int64_t k, int64_t rows) {
    return oe_chunk_counter_behind(acts_of(acts), acts_bytes(by, k, rows));
}

void oe_sb_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_sb_kernel *kernel = userdata;
    const struct ggml_tensor *x = dst->src[0];
    const int64_t k = x->ne[0], rows = x->ne[1], all = oe_quads_of(kernel, k) * rows;
    const bool alone = rows == 1 && kernel->multiply_single;
    if (ith == 0) {
        atomic_init(taken_groups(kernel, dst, k, rows), 0);
    }
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const char *row = (const char *)x->data + (size_t)(i % rows) * x->nb[1];
        const int64_t block = i / rows * OE_QUAD;
        oe_quad quad;
        oe_quad_quantize(kernel, (const float *)row + block * kernel->block, k / kernel->block - block, &quad);
        oe_quad_store(kernel, &quad, alone, acts_of(dst) + (size_t)i * oe_quad_bytes(kernel));
    }
}

void oe_sb_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_sb_kernel *kernel = userdata;
    const struct ggml_tensor *weights = dst->src[0], *acts = dst->src[1];
    const oe_sb_product product = {
        .weights = weights->data,
        .row_bytes = weights->nb[1],
        .acts = acts_of(acts),
        .blocks = weights->ne[0] / kernel->block,
        .m = dst->ne[0],
        .rows = dst->ne[1],
        .out = dst->data,
    };
    void (*const multiply)(const oe_sb_product *p, int64_t first, int64_t last) =
        product.rows == 1 && kernel->multiply_single ? kernel->multiply_single : kernel->multiply;
    const int64_t groups = (product.m + OE_SB_GROUP - 1) / OE_SB_GROUP;
    oe_chunk_counter *taken = taken_groups(kernel, acts, weights->ne[0], product.rows);
    int64_t first, last;
    (void)ith;
    while (oe_take_chunk(taken, groups, nth, &first, &last)) {
        const int64_t end = last * OE_SB_GROUP;
        multiply(&product, first * OE_SB_GROUP, end < product.m ? end : product.m);
    }
    oe_leave_chunks(taken, groups, nth);
}
