/* State-space scan: part of kernel.c. */
#ifndef OE_RECURRENT_SSM_SCAN_H
#define OE_RECURRENT_SSM_SCAN_H

#include "kernels/exp_f32.h"
#include "kernels/recurrent/state_tile.h"

/* A state is kept as `scale` times a matrix, so that a token need not multiply the matrix with its decay, but only this
 * number. Where that becomes small, the matrix is multiplied with it, and goes on with 1. The rule looks at one token
 * after the other, so the bits do not depend on how rows are cut into segments. */
#define LEAST_SCALE 0x1p-40f

/* Goes on to the scale behind a token. Returns what the matrix is multiplied with before it, mostly 1. */
INLINE float advance_scale(float *scale, float decay) {
    const float next = *scale * decay;
    const bool kept = next >= LEAST_SCALE && next <= 1.0f;
    *scale = kept ? next : 1.0f;
    return kept ? 1.0f : next;
}

#define AT_ONCE 16 /* tokens for which some rows of a matrix stay in registers */
#if defined(__AVX512F__)
#define ROWS 8 /* of these */
#define ACROSS(n) (n)
#define SAME_PLACES(bytes) false
#else
#define ROWS 4
#define ACROSS(n) 1
#define SAME_PLACES(bytes) ((bytes) % 4096 == 0) /* rows so far apart fall into the same few places of the L1 cache */
#endif

/* Operands of some tokens: with each, the matrix becomes shrink * S + b moved^T, and is multiplied with c. */
typedef struct {
    int64_t tokens;
    const float *b[AT_ONCE], *c[AT_ONCE];
    float shrink[AT_ONCE], scale[AT_ONCE];
    lanes x[AT_ONCE][MOST_VECTORS], moved[AT_ONCE][MOST_VECTORS];
    lanes sums[2][AT_ONCE][MOST_VECTORS]; /* of even and of odd rows, or each sum would wait for the one before it */
    float copies[2][AT_ONCE][OE_STATE_ROWS];
} steps;

/* The b or c of a token, or a copy. */
INLINE const float *near(const oe_operand *of, int64_t row, int64_t rows, float *copy) {
    const float *from = oe_operand_at(of, row);
    return SAME_PLACES(of->row) ? memcpy(copy, from, (size_t)rows * sizeof *copy) : from;
}

INLINE void begin_steps(const int n, const oe_ssm_scan *p, const oe_segment *s, int64_t first, float *scale,
                        steps *to) {
    const int64_t left = s->n - first;
    to->tokens = left < AT_ONCE ? left : AT_ONCE;
    for (int64_t t = 0; t < to->tokens; t++) {
        const int64_t row = s->rows[first + t];
        const float dt = *oe_operand_at(&p->dt, row);
        to->b[t] = near(&p->b, row, p->state.rows, to->copies[0][t]);
        to->c[t] = near(&p->c, row, p->state.rows, to->copies[1][t]);
        to->shrink[t] = advance_scale(scale, oe_exp_f32(dt * p->a));
        to->scale[t] = *scale;
        load_columns(oe_operand_at(&p->x, row), p->state.count, n, to->x[t]);
        for (int w = 0; w < n; w++) {
            to->moved[t][w] = lanes_mul(lanes_set(dt / *scale), to->x[t][w]);
            to->sums[0][t][w] = to->sums[1][t][w] = lanes_set(0.0f);
        }
    }
}

/* `rows` rows from row i on, all tokens one after the other: vectors w0 to w0 + n of the `width` that a row has. */
INLINE void advance(const int rows, const int n, const int w0, int64_t i, const int width, const float *from, float *to,
                    const bool past_caches, steps *by) {
    lanes state[ROWS][MOST_VECTORS];
    for (int r = 0; r < rows; r++) {
        for (int w = 0; w < n; w++) {
            state[r][w] = lanes_load(from + ((i + r) * width + w0 + w) * OE_LANES);
        }
    }
    for (int64_t t = 0; t < by->tokens; t++) {
        const float *const b = by->b[t] + i, *const c = by->c[t] + i;
        lanes sums[2][MOST_VECTORS], moved[MOST_VECTORS];
        for (int w = 0; w < n; w++) {
            sums[0][w] = by->sums[i % 2][t][w0 + w];
            sums[1][w] = by->sums[1][t][w0 + w];
            moved[w] = by->moved[t][w0 + w];
        }
        if (by->shrink[t] != 1.0f) {
            const lanes shrink = lanes_set(by->shrink[t]);
            for (int r = 0; r < rows; r++) {
                for (int w = 0; w < n; w++) {
                    state[r][w] = lanes_mul(state[r][w], shrink);
                }
            }
        }
        for (int r = 0; r < rows; r++) {
            for (int w = 0; w < n; w++) {
                state[r][w] = lanes_fma(lanes_set(b[r]), moved[w], state[r][w]);
                sums[r % 2][w] = lanes_fma(lanes_set(c[r]), state[r][w], sums[r % 2][w]);
            }
        }
        for (int w = 0; w < n; w++) {
            by->sums[i % 2][t][w0 + w] = sums[0][w];
            if (rows > 1) {
                by->sums[1][t][w0 + w] = sums[1][w];
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int w = 0; w < n; w++) {
            (past_caches ? stream : lanes_store)(to + ((i + r) * width + w0 + w) * OE_LANES, state[r][w]);
        }
    }
}

/* Row i of a matrix, with one token. `shrink` is NULL where it is 1, as mostly. */
INLINE void advance_row(const int n, int64_t i, const float *from, float *to, const bool past_caches, float b, float c,
                        const lanes *shrink, const lanes *moved, lanes *sums) {
    for (int w = 0; w < n; w++) {
        const int64_t at = (i * n + w) * OE_LANES;
        const lanes old = shrink ? lanes_mul(lanes_load(from + at), *shrink) : lanes_load(from + at);
        const lanes s = lanes_fma(lanes_set(b), moved[w], old);
        (past_caches ? stream : lanes_store)(to + at, s);
        sums[w] = lanes_fma(lanes_set(c), s, sums[w]);
    }
}

/* One token: sums stay in registers, and rows come as memory has them. */
INLINE void advance_once(const int n, int64_t rows, const float *from, float *to, const bool past_caches,
                         const lanes *shrink, steps *by) {
    const float *const b = by->b[0], *const c = by->c[0];
    lanes even[MOST_VECTORS], odd[MOST_VECTORS], moved[MOST_VECTORS];
    int64_t i = 0;
    for (int w = 0; w < n; w++) {
        even[w] = odd[w] = lanes_set(0.0f);
        moved[w] = by->moved[0][w];
    }
    for (; i + 1 < rows; i += 2) {
        advance_row(n, i, from, to, past_caches, b[i], c[i], shrink, moved, even);
        advance_row(n, i + 1, from, to, past_caches, b[i + 1], c[i + 1], shrink, moved, odd);
    }
    if (i < rows) {
        advance_row(n, i, from, to, past_caches, b[i], c[i], shrink, moved, even);
    }
    for (int w = 0; w < n; w++) {
        by->sums[0][0][w] = even[w];
        by->sums[1][0][w] = odd[w];
    }
}

INLINE void advance_all(const int n, int64_t rows, const float *from, float *to, const bool past_caches, steps *by) {
    const int across = ACROSS(n);
    int64_t i = 0;
    if (by->tokens == 1 && by->shrink[0] == 1.0f) {
        advance_once(n, rows, from, to, past_caches, NULL, by);
        return;
    }
    if (by->tokens == 1) {
        const lanes shrink = lanes_set(by->shrink[0]);
        advance_once(n, rows, from, to, past_caches, &shrink, by);
        return;
    }
    for (; i + ROWS <= rows; i += ROWS) {
        for (int w = 0; w < n; w += across) {
            advance(ROWS, across, w, i, n, from, to, past_caches, by);
        }
    }
    for (; i < rows; i++) {
        for (int w = 0; w < n; w += across) {
            advance(1, across, w, i, n, from, to, past_caches, by);
        }
    }
}

/* Tokens' results, of the sums and `d`. */
INLINE void store_results(const int n, const oe_ssm_scan *p, const int32_t *rows, const steps *by) {
    for (int64_t t = 0; t < by->tokens; t++) {
        lanes out[MOST_VECTORS];
        for (int w = 0; w < n; w++) {
            out[w] = lanes_mul(lanes_add(by->sums[0][t][w], by->sums[1][t][w]), lanes_set(by->scale[t]));
            out[w] = p->d == NULL ? out[w] : lanes_fma(lanes_set(*p->d), by->x[t][w], out[w]);
        }
        store_columns(p->state.to + rows[t] * p->state.to_row, p->state.count, n, out);
    }
}

INLINE void ssm_scan_columns(const int n, const oe_ssm_scan *p, const oe_segment *s) {
    const oe_columns *c = &p->state;
    _Alignas(64) float kept[OE_STATE_ROWS * OE_STATE_COLUMNS];
    const tile t = begin_tile(c, kept, n * OE_LANES);
    const float *from = t.first;
    float scale = p->read_scale == NULL || *p->read_scale == 0.0f ? 1.0f : *p->read_scale;
    steps by;
    for (int64_t i = 0; i < s->n; i += AT_ONCE) {
        const bool last = i + AT_ONCE >= s->n;
        begin_steps(n, p, s, i, &scale, &by);
        if (last && is_streamed(&t)) {
            advance_all(n, c->rows, from, t.last, true, &by);
            end_stream();
        } else {
            advance_all(n, c->rows, from, last ? t.last : kept, false, &by);
        }
        from = kept;
        store_results(n, p, s->rows + i, &by);
    }
    end_tile(c, kept, n * OE_LANES);
    if (p->write_scale != NULL) {
        *p->write_scale = scale;
    }
}

NOINLINE void ssm_scan(const oe_ssm_scan *p, const oe_segment *s) {
    if (p->state.count > OE_LANES) {
        ssm_scan_columns(2, p, s);
    } else {
        ssm_scan_columns(1, p, s);
    }
}

#endif
