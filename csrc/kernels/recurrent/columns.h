/* Operations whose states are a matrix for each head, [rows, columns]: which columns a thread computes. */
#ifndef OE_RECURRENT_COLUMNS_H
#define OE_RECURRENT_COLUMNS_H

#include "kernels/recurrent/segments.h"

/* Columns [from, from + count) of one head. */
typedef struct {
    int64_t head, from, count;
} oe_column_block;

static inline int64_t oe_column_blocks(const struct ggml_tensor *dst) {
    return dst->ne[1] * ((dst->ne[0] + OE_STATE_COLUMNS - 1) / OE_STATE_COLUMNS);
}

/* Block i of dst [columns, heads, n]. */
static inline oe_column_block oe_column_block_at(const struct ggml_tensor *dst, int64_t i) {
    const int64_t blocks = (dst->ne[0] + OE_STATE_COLUMNS - 1) / OE_STATE_COLUMNS;
    const int64_t from = i % blocks * OE_STATE_COLUMNS, left = dst->ne[0] - from;
    return (oe_column_block){i / blocks, from, left < OE_STATE_COLUMNS ? left : OE_STATE_COLUMNS};
}

/* The columns of a block in one segment, of states with so many rows. A state is block by block, so that each lies in
 * one run of memory. */
static inline oe_columns oe_columns_of(struct ggml_tensor *dst, int64_t rows, const oe_column_block *b,
                                       const oe_segment *s) {
    const int64_t column = b->head * dst->ne[0] + b->from;
    return (oe_columns){.rows = rows,
                        .count = b->count,
                        .read = s->read == NULL ? NULL : s->read + column * rows,
                        .write = s->write == NULL ? NULL : s->write + column * rows,
                        .to = (float *)dst->data + column,
                        .to_row = dst->ne[0] * dst->ne[1]};
}

/* The numbers of t [numbers, heads, n] from number `from` of a head on, for each row of the batch. */
static inline oe_operand oe_head_of(const struct ggml_tensor *t, int64_t head, int64_t from) {
    return (oe_operand){(const char *)t->data + (size_t)head * t->nb[1] + (size_t)from * t->nb[0], t->nb[2]};
}

/* One number of t [heads, n]. */
static inline oe_operand oe_number_of(const struct ggml_tensor *t, int64_t head) {
    return (oe_operand){(const char *)t->data + (size_t)head * t->nb[0], t->nb[1]};
}

#endif
