#include "kernels/recurrent/ssm_scan_op.h"

#include "kernels/recurrent/columns.h"

void oe_ssm_scan_op(struct ggml_tensor *dst, int ith, int nth, void *used) {
    const oe_recurrent_kernel *kernel = used;
    const struct ggml_tensor *b = dst->src[3], *d = dst->src[9];
    const int64_t per_group = dst->ne[1] / b->ne[1], all = oe_column_blocks(dst);
    const int64_t matrices = b->ne[0] * dst->ne[0] * dst->ne[1];
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const oe_column_block block = oe_column_block_at(dst, i);
        for (int64_t m = 0; m < dst->src[6]->ne[1]; m++) {
            const oe_segment s = oe_segment_at(dst->src[5], dst->src[6], dst->src[7], dst->src[8], m);
            if (s.n > 0) {
                const oe_ssm_scan scan = {.state = oe_columns_of(dst, b->ne[0], &block, &s),
                                          .x = oe_head_of(dst->src[0], block.head, block.from),
                                          .dt = oe_number_of(dst->src[1], block.head),
                                          .b = oe_head_of(b, block.head / per_group, 0),
                                          .c = oe_head_of(dst->src[4], block.head / per_group, 0),
                                          .a = ((const float *)dst->src[2]->data)[block.head],
                                          .d = d == NULL ? NULL : (const float *)d->data + block.head,
                                          .read_scale = s.read == NULL ? NULL : s.read + matrices + i,
                                          .write_scale = s.write == NULL ? NULL : s.write + matrices + i};
                kernel->ssm_scan(&scan, &s);
            }
        }
    }
}
