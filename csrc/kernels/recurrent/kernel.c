/* Compiled once for each instruction set; OE_RECURRENT_KERNEL is the kernel's name. */
#include "kernels/recurrent/kernel.h"

#include <string.h>

#include "base/simd16.h"
#include "kernels/exp_f32.h"

#define MOST_VECTORS (OE_STATE_COLUMNS / OE_LANES)

/* -- some lanes ---------------------------------------------------------------------------------------------------- */

/* The first `count` lanes; the others are 0. */
INLINE lanes load_some(const float *p, int64_t count) {
    if (count >= OE_LANES) {
        return lanes_load(p);
    }
    float padded[OE_LANES] = {0};
    memcpy(padded, p, (size_t)count * sizeof *p);
    return lanes_load(padded);
}

INLINE void store_some(float *p, int64_t count, lanes x) {
    if (count >= OE_LANES) {
        lanes_store(p, x);
        return;
    }
    float padded[OE_LANES];
    lanes_store(padded, x);
    memcpy(p, padded, (size_t)count * sizeof *p);
}

/* -- convolution --------------------------------------------------------------------------------------------------- */

#if defined(__clang__) || __GNUC__ >= 12 /* have __builtin_shufflevector */
#define FOUR_AT_ONCE

typedef float sixteen __attribute__((vector_size(16 * sizeof(float)), aligned(sizeof(float)), may_alias));

/* Taps t and t + 1 of 8 channels, 4 taps each, in a and b. */
#define TWO_TAPS(a, b, t)                                                                                              \
    __builtin_shufflevector(a, b, t, t + 4, t + 8, t + 12, t + 16, t + 20, t + 24, t + 28, t + 1, t + 5, t + 9,        \
                            t + 13, t + 17, t + 21, t + 25, t + 29)
/* Eight numbers of a and eight of b, from number i on. */
#define EIGHT_OF_EACH(a, b, i)                                                                                         \
    __builtin_shufflevector(a, b, i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7, i + 16, i + 17, i + 18, i + 19,  \
                            i + 20, i + 21, i + 22, i + 23)

/* Four taps of 16 channels. */
INLINE void transpose_four(const float *weight, float *to) {
    const sixteen *w = (const sixteen *)(const void *)weight;
    for (int64_t k = 0; k < 4; k += 2) {
        const sixteen low = k ? TWO_TAPS(w[0], w[1], 2) : TWO_TAPS(w[0], w[1], 0);
        const sixteen high = k ? TWO_TAPS(w[2], w[3], 2) : TWO_TAPS(w[2], w[3], 0);
        const sixteen taps[2] = {EIGHT_OF_EACH(low, high, 0), EIGHT_OF_EACH(low, high, 8)};
        memcpy(to + k * OE_CONV_CHANNELS, &taps[0], sizeof taps[0]);
        memcpy(to + (k + 1) * OE_CONV_CHANNELS, &taps[1], sizeof taps[1]);
    }
}

#endif

static void transpose(const float *weight, int64_t count, int64_t taps, float *to) {
    int64_t i = 0;
    if (count < OE_CONV_CHANNELS) {
        memset(to, 0, (size_t)(taps * OE_CONV_CHANNELS) * sizeof *to);
    }
#if defined(FOUR_AT_ONCE)
    for (; taps == 4 && i + 16 <= count; i += 16) {
        transpose_four(weight + 4 * i, to + i);
    }
#endif
    for (; i < count; i++) {
        for (int64_t k = 0; k < taps; k++) {
            to[k * OE_CONV_CHANNELS + i] = weight[i * taps + k];
        }
    }
}

static const float no_inputs[OE_CONV_CHANNELS];

/* The latest inputs of gated channels, which are products: input t is row t % taps. */
typedef float oe_products[OE_CONV_TAPS][OE_CONV_CHANNELS];

/* The inputs at `t` of a segment; for t < 0 what the state has of those before it. */
INLINE const float *inputs_at(const oe_convolution *c, const oe_segment *s, oe_products products, int64_t t) {
    if (t >= 0) {
        return c->gated ? products[t % c->taps] : oe_operand_at(&c->x, s->rows[t]);
    }
    return c->read == NULL ? no_inputs : c->read + (c->taps - 1 + t) * c->channels;
}

/* to = a * b; each may be `to`. */
INLINE void multiply(const float *a, const float *b, int64_t count, float *to) {
    for (int64_t i = 0; i < count; i += OE_LANES) {
        store_some(to + i, count - i, lanes_mul(load_some(a + i, count - i), load_some(b + i, count - i)));
    }
}

/* x / (1 + exp(-x)), from e = exp(-|x|): x / (1 + e), times e where x is negative. */
INLINE lanes silu(lanes x) {
    const lanes one = lanes_set(1.0f), e = lanes_exp(lanes_signed_as(x, lanes_set(-1.0f)));
    const lanes factor = lanes_fma(lanes_sub(one, e), lanes_unless_below(x, 0.0f, one), e);
    return lanes_mul(x, lanes_div(factor, lanes_add(one, e)));
}

INLINE void convolve_row(const oe_convolution *c, const int64_t taps, const bool with_silu, const float *const *in,
                         float *to) {
    for (int64_t i = 0; i < c->count; i += OE_LANES) {
        const int64_t left = c->count - i;
        lanes sum = c->bias == NULL ? lanes_set(0.0f) : load_some(c->bias + i, left);
        for (int64_t k = 0; k < taps; k++) {
            sum = lanes_fma(lanes_load(c->weights + k * OE_CONV_CHANNELS + i), load_some(in[k] + i, left), sum);
        }
        store_some(to + i, left, with_silu ? silu(sum) : sum);
    }
}

static void convolve(const oe_convolution *c, const oe_segment *s) {
    oe_products products;
    for (int64_t t = 0; t < s->n; t++) {
        const float *in[OE_CONV_TAPS];
        if (c->gated) {
            multiply(oe_operand_at(&c->before, s->rows[t]), oe_operand_at(&c->x, s->rows[t]), c->count,
                     products[t % c->taps]);
        }
        for (int64_t k = 0; k < c->taps; k++) {
            in[k] = inputs_at(c, s, products, t - c->taps + 1 + k);
        }
        float *to = c->to + s->rows[t] * c->channels;
        if (c->taps == 4 && c->silu) { /* Mamba-2 and delta nets */
            convolve_row(c, 4, true, in, to);
        } else {
            convolve_row(c, c->taps, c->silu, in, to);
        }
        if (c->gated) {
            multiply(oe_operand_at(&c->after, s->rows[t]), to, c->count, to);
        }
    }
    for (int64_t k = 0; c->write != NULL && k < c->taps - 1; k++) {
        memcpy(c->write + k * c->channels, inputs_at(c, s, products, s->n - c->taps + 1 + k),
               (size_t)c->count * sizeof(float));
    }
}

/* -- columns of a state -------------------------------------------------------------------------------------------- */

/* Past the caches, where `p` is the beginning of a line: until a state is read again, a step reads all weights. */
INLINE void stream(float *p, lanes x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, x);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, x.low);
    _mm256_stream_ps(p + 8, x.high);
#else
    lanes_store(p, x);
#endif
}

INLINE bool is_line(const float *p) { return ((uintptr_t)p & 63) == 0; }

/* Other threads see what was streamed before what this one writes next. */
INLINE void end_stream(void) {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

/* A call's columns, padded to whole vectors: where they are kept between two tokens, where they are read first, and
 * where they are written at last. Rows follow each other. */
typedef struct {
    const float *first;
    float *kept, *last;
} tile;

INLINE tile begin_tile(const oe_columns *c, float *kept, int width) {
    if (c->count == width && c->read != NULL) {
        return (tile){c->read, kept, c->write == NULL ? kept : c->write};
    }
    memset(kept, 0, (size_t)(c->rows * width) * sizeof *kept);
    for (int64_t i = 0; c->read != NULL && i < c->rows; i++) {
        memcpy(kept + i * width, c->read + i * c->count, (size_t)c->count * sizeof *kept);
    }
    return (tile){kept, kept, c->count == width && c->write != NULL ? c->write : kept};
}

INLINE void end_tile(const oe_columns *c, const float *kept, int width) {
    for (int64_t i = 0; c->count < width && c->write != NULL && i < c->rows; i++) {
        memcpy(c->write + i * c->count, kept + i * width, (size_t)c->count * sizeof *kept);
    }
}

INLINE void load_columns(const float *p, int64_t count, const int n, lanes *to) {
    for (int w = 0; w < n; w++) {
        const int64_t left = count - w * OE_LANES;
        to[w] = load_some(p + w * OE_LANES, left < OE_LANES ? left : OE_LANES);
    }
}

INLINE void store_columns(float *p, int64_t count, const int n, const lanes *x) {
    for (int w = 0; w < n; w++) {
        const int64_t left = count - w * OE_LANES;
        store_some(p + w * OE_LANES, left < OE_LANES ? left : OE_LANES, x[w]);
    }
}

/* -- gated delta net ----------------------------------------------------------------------------------------------- */

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
        if (t.last != kept && is_line(t.last)) {
            pass(n, by_row, c->rows, from, t.last, true, &last, NULL, NULL, NULL, NULL);
            end_stream();
        } else {
            pass(n, by_row, c->rows, from, t.last, false, &last, NULL, NULL, NULL, NULL);
        }
        end_tile(c, kept, n * OE_LANES);
    }
}

static void delta_net(const oe_delta_net *d, const oe_segment *s) {
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

/* -- state-space scan ---------------------------------------------------------------------------------------------- */

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
        if (i + 1 == s->n && t.last != kept && is_line(t.last)) {
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

static void ssm_scan(const oe_ssm_scan *p, const oe_segment *s) {
    if (p->state.count > OE_LANES) {
        ssm_scan_columns(2, p, s);
    } else {
        ssm_scan_columns(1, p, s);
    }
}

const oe_recurrent_kernel OE_RECURRENT_KERNEL = {transpose, convolve, delta_net, ssm_scan};
