/* Causal convolution, with SiLU or with gates: part of kernel.c. */
#ifndef OE_RECURRENT_CONVOLUTION_H
#define OE_RECURRENT_CONVOLUTION_H

#include "kernels/recurrent/kernel.h"
#include "kernels/recurrent/some_lanes.h"

#if defined(__clang__) || __GNUC__ >= 12 /* have __builtin_shufflevector */
#define FOUR_AT_ONCE

typedef float sixteen
    __attribute__((vector_size(16 * sizeof(float)), aligned(sizeof(float)), may_alias));

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

NOINLINE void transpose(const float *weight, int64_t count, int64_t taps, float *to) {
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

NOINLINE void convolve(const oe_convolution *c, const oe_segment *s) {
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

#endif
