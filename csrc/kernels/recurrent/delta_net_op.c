#include "kernels/recurrent/delta_net_op.h"

#include "kernels/recurrent/columns.h"

void oe_delta_net_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_delta_net_by *by = userdata;
    const struct ggml_tensor *q = dst->src[0], *k = dst->src[1], *g = dst->src[3];
    const bool by_row = ggml_nelements(g) > ggml_nelements(dst->src[4]);
    const int64_t heads = dst->ne[1], key_heads = k->ne[1], all = oe_column_blocks(dst);
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const oe_column_block b = oe_column_block_at(dst, i);
        const int64_t key_head = by->grouped ? b.head / (heads / key_heads) : b.head % key_heads;
        for (int64_t m = 0; m < dst->src[6]->ne[1]; m++) {
            const oe_segment s = oe_segment_at(dst->src[5], dst->src[6], dst->src[7], dst->src[8], m);
            if (s.n > 0) {
                const oe_delta_net d = {.state = oe_columns_of(dst, k->ne[0], &b, &s),
                                        .q = oe_head_of(q, key_head, 0),
                                        .k = oe_head_of(k, key_head, 0),
                                        .v = oe_head_of(dst->src[2], b.head, b.from),
                                        .g = by_row ? oe_head_of(g, b.head, 0) : oe_number_of(g, b.head),
                                        .beta = oe_number_of(dst->src[4], b.head),
                                        .by_row = by_row,
                                        .to_unit = by->to_unit,
                                        .eps = by->eps};
                by->kernel->delta_net(&d, &s);
            }
        }
    }
}
