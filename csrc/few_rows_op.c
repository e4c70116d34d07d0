#include "few_rows_op.h"

#include "ggml.h"

void oe_few_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_few_kernel *kernel = userdata;
    const struct ggml_tensor *x = dst->src[0];
    const int64_t rows = x->ne[1], all = x->ne[0] / kernel->block * rows;
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const char *row = (const char *)x->data + (size_t)(i % rows) * x->nb[1];
        void *to = (char *)dst->data + (size_t)i * kernel->act_bytes;
        kernel->quantize((const float *)row + i / rows * kernel->block, to);
    }
}

void oe_few_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_few_kernel *kernel = userdata;
    const struct ggml_tensor *weights = dst->src[0];
    const oe_few_product product = {
        .weights = weights->data,
        .row_bytes = weights->nb[1],
        .acts = dst->src[1]->data,
        .blocks = weights->ne[0] / kernel->block,
        .m = dst->ne[0],
        .rows = dst->ne[1],
        .out = dst->data,
    };
    const int64_t groups = (product.m + OE_FEW_GROUP - 1) / OE_FEW_GROUP;
    const int64_t last = groups * (ith + 1) / nth * OE_FEW_GROUP;
    kernel->multiply(&product, groups * ith / nth * OE_FEW_GROUP, last < product.m ? last : product.m);
}
