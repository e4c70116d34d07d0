/* Gated delta net: part of kernel.c. */
#ifndef OE_RECURRENT_DELTA_NET_H
#define OE_RECURRENT_DELTA_NET_H

#include "kernels/exp_f32.h"
#include "kernels/recurrent/state_tile.h"

/* What a token does to its columns: they become decay * S + k delta^T. With `decays`, each row has its own. */
typedef struct {
    const float *k, *decays;
    float decay;
    lanes delta[MOST_VECTORS];
} change;

/* One pass over a state: it is changed and stored, or left as it is (`before` NULL), and the result is multiplied with
 * the next token's key and query, or not (`k` NULL). */
INLINE void pass(const int n, const bool by_row, int64_t rows, const float *from, float *to, const bool past_caches,
                 const change *before, const float *k, const float *q, lanes *by_key, lanes *by_query) {
    for (int64_t i = 0; i < rows; i++) {
        for (int w = 0; w < n; w++) {
            const int64_t at = (i * n + w) * OE_LANES;
            lanes s = lanes_load(from + at);
            if (before != NULL) {
                const lanes decay = lanes_set(by_row ? before->decays[i] : before->decay);
                s = lanes_fma(lanes_set(before->k[i]), before->delta[w], lanes_mul(s, decay));
                (past_caches ? stream : lanes_store)(to + at, s);
            }
            if (k != NULL) {
                by_key[w] = lanes_fma(lanes_set(k[i]), s, by_key[w]);
                by_query[w] = lanes_fma(lanes_set(q[i]), s, by_query[w]);
            }
        }
    }
}

/* In order, in 16 lanes. */
INLINE float dot(const float *a, const float *b, int64_t n) {
    lanes sum = lanes_set(0.0f);
    for (int64_t i = 0; i < n; i += OE_LANES) {
        const int64_t count = n - i < OE_LANES ? n - i : OE_LANES;
        sum = lanes_fma(load_some(a + i, count), load_some(b + i, count), sum);
    }
    return lanes_sum(sum);
}

/* e^g of each row, and a key and a query times these: what the state before it decays is multiplied with. */
typedef struct {
    float decays[OE_STATE_ROWS], k[OE_STATE_ROWS], q[OE_STATE_ROWS];
} decayed;

INLINE void decay_rows(decayed *to, const float *g, const float *k, const float *q, int64_t rows) {
    for (int64_t i = 0; i < rows; i += OE_LANES) {
        const int64_t count = rows - i < OE_LANES ? rows - i : OE_LANES;
        const lanes decays = lanes_exp(load_some(g + i, count));
        store_some(to->decays + i, count, decays);
        store_some(to->k + i, count, lanes_mul(decays, load_some(k + i, count)));
        store_some(to->q + i, count, lanes_mul(decays, load_some(q + i, count)));
    }
}

/* What a token's key and query are multiplied with. */
typedef struct {
    float k, q;
} lengths;

INLINE lengths lengths_of(const oe_delta_net *d, const float *k, const float *q) {
    const int64_t rows = d->state.rows;
    if (!d->to_unit) {
        return (lengths){1.0f, 1.0f};
    }
    return (lengths){1.0f / sqrtf(dot(k, k, rows) + d->eps), 1.0f / sqrtf((dot(q, q, rows) + d->eps) * (float)rows)};
}

/* The decayed state of a token gives decay * S^T k and decay * S^T q; what is added to it adds (k q) delta to the
 * result. So a token needs one pass, in which the change by the token before it is made. */
INLINE void delta_net_columns(const int n, const bool by_row, const oe_delta_net *d, const oe_segment *s) {
    const oe_columns *c = &d->state;
    _Alignas(64) float kept[OE_STATE_ROWS * OE_STATE_COLUMNS];
    const tile t = begin_tile(c, kept, n * OE_LANES);
    const float *from = t.first;
    change last = {0};
    decayed both[2]; /* of this token, and of the one before it */
    for (int64_t i = 0; i < s->n; i++) {
        const int64_t row = s->rows[i];
        const float *k = oe_operand_at(&d->k, row), *q = oe_operand_at(&d->q, row), *g = oe_operand_at(&d->g, row);
        const float *decayed_k = k, *decayed_q = q;
        if (by_row) {
            decay_rows(&both[i % 2], g, k, q, c->rows);
            decayed_k = both[i % 2].k;
            decayed_q = both[i % 2].q;
        }
        lanes by_key[MOST_VECTORS], by_query[MOST_VECTORS], v[MOST_VECTORS];
        for (int w = 0; w < n; w++) {
            by_key[w] = by_query[w] = lanes_set(0.0f);
        }
        if (i == 0) {
            pass(n, by_row, c->rows, from, NULL, false, NULL, decayed_k, decayed_q, by_key, by_query);
        } else {
            pass(n, by_row, c->rows, from, t.kept, false, &last, decayed_k, decayed_q, by_key, by_query);
            from = t.kept;
        }
        load_columns(oe_operand_at(&d->v, row), c->count, n, v);
        const float decay = by_row ? 1.0f : oe_exp_f32(*g);
        const lengths by = lengths_of(d, k, q);
        const lanes keep = lanes_set(-decay * by.k), beta = lanes_set(*oe_operand_at(&d->beta, row) * by.k);
        const lanes same = lanes_set(dot(k, q, c->rows) * by.q), asked = lanes_set(decay * by.q);
        last.k = k;
        last.decays = both[i % 2].decays;
        last.decay = decay;
        for (int w = 0; w < n; w++) {
            last.delta[w] = lanes_mul(lanes_fma(keep, by_key[w], v[w]), beta);
            v[w] = lanes_fma(last.delta[w], same, lanes_mul(asked, by_query[w]));
        }
        store_columns(c->to + row * c->to_row, c->count, n, v);
    }
    if (c->write != NULL) {
        if (is_streamed(&t)) {
            pass(n, by_row, c->rows, from, t.last, true, &last, NULL, NULL, NULL, NULL);
            end_stream();
        } else {
            pass(n, by_row, c->rows, from, t.last, false, &last, NULL, NULL, NULL, NULL);
        }
        end_tile(c, kept, n * OE_LANES);
    }
}

NOINLINE void delta_net(const oe_delta_net *d, const oe_segment *s) {
    if (d->by_row) {
        if (d->state.count > OE_LANES) {
            delta_net_columns(2, true, d, s);
        } else {
            delta_net_columns(1, true, d, s);
        }
    } else if (d->state.count > OE_LANES) {
        delta_net_columns(2, false, d, s);
    } else {
        delta_net_columns(1, false, d, s);
    }
}

#endif
