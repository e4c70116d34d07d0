/* State-space scan: part of kernel.c. */
#ifndef OE_RECURRENT_SSM_SCAN_H
#define OE_RECURRENT_SSM_SCAN_H

#include "kernels/exp_f32.h"
#include "kernels/recurrent/state_tile.h"

/* Operands of one token: the state becomes decay * S + b moved^T, and is multiplied with c. */
typedef struct {
    const float *b, *c;
    lanes decay, moved[MOST_VECTORS];
} step;

INLINE void advance_row(const int n, int64_t i, const float *from, float *to, const bool past_caches, const step *by,
                        lanes *sums) {
    for (int w = 0; w < n; w++) {
        const int64_t at = (i * n + w) * OE_LANES;
        const lanes s = lanes_fma(lanes_set(by->b[i]), by->moved[w], lanes_mul(lanes_load(from + at), by->decay));
        (past_caches ? stream : lanes_store)(to + at, s);
        sums[w] = lanes_fma(lanes_set(by->c[i]), s, sums[w]);
    }
}

/* Even and odd rows are summed apart, or each sum would wait for the one before it. */
INLINE void advance(const int n, int64_t rows, const float *from, float *to, const bool past_caches, const step *by,
                    lanes *out) {
    lanes even[MOST_VECTORS], odd[MOST_VECTORS];
    int64_t i = 0;
    for (int w = 0; w < n; w++) {
        even[w] = odd[w] = lanes_set(0.0f);
    }
    for (; i + 1 < rows; i += 2) {
        advance_row(n, i, from, to, past_caches, by, even);
        advance_row(n, i + 1, from, to, past_caches, by, odd);
    }
    if (i < rows) {
        advance_row(n, i, from, to, past_caches, by, even);
    }
    for (int w = 0; w < n; w++) {
        out[w] = lanes_add(even[w], odd[w]);
    }
}

INLINE void ssm_scan_columns(const int n, const oe_ssm_scan *p, const oe_segment *s) {
    const oe_columns *c = &p->state;
    _Alignas(64) float kept[OE_STATE_ROWS * OE_STATE_COLUMNS];
    const tile t = begin_tile(c, kept, n * OE_LANES);
    const float *from = t.first;
    for (int64_t i = 0; i < s->n; i++) {
        const int64_t row = s->rows[i];
        const float dt = *oe_operand_at(&p->dt, row);
        lanes x[MOST_VECTORS], out[MOST_VECTORS];
        step by = {.b = oe_operand_at(&p->b, row), .c = oe_operand_at(&p->c, row)};
        by.decay = lanes_set(oe_exp_f32(dt * p->a));
        load_columns(oe_operand_at(&p->x, row), c->count, n, x);
        for (int w = 0; w < n; w++) {
            by.moved[w] = lanes_mul(lanes_set(dt), x[w]);
        }
        if (i + 1 == s->n && is_streamed(&t)) {
            advance(n, c->rows, from, t.last, true, &by, out);
            end_stream();
        } else {
            advance(n, c->rows, from, i + 1 == s->n ? t.last : kept, false, &by, out);
        }
        from = kept;
        for (int w = 0; p->d != NULL && w < n; w++) {
            out[w] = lanes_fma(lanes_set(*p->d), x[w], out[w]);
        }
        store_columns(c->to + row * c->to_row, c->count, n, out);
    }
    end_tile(c, kept, n * OE_LANES);
}

NOINLINE void ssm_scan(const oe_ssm_scan *p, const oe_segment *s) {
    if (p->state.count > OE_LANES) {
        ssm_scan_columns(2, p, s);
    } else {
        ssm_scan_columns(1, p, s);
    }
}

#endif
