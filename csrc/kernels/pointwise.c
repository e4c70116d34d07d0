#include "kernels/pointwise.h"

#include <math.h>

#include "base/float_bits.h"
#include "base/target_clones.h"
#include "ggml.h"
#include "kernels/exp_f32.h"

#define SHARE 4096 /* fewest numbers per thread: fewer take less time than sharing them out */

/* Some of the numbers of an operation. */
typedef struct part {
    const float *from;
    float *to;
    int64_t n; /* 0 for threads that have nothing to do */
} part;

static part part_of(struct ggml_tensor *dst, int ith, int nth) {
    const int64_t all = ggml_nelements(dst);
    int64_t share = (all + nth - 1) / nth;
    share = share < SHARE ? SHARE : share;
    const int64_t begin = share * ith < all ? share * ith : all, left = all - begin;
    return (part){(const float *)dst->src[0]->data + begin, (float *)dst->data + begin, left < share ? left : share};
}

/* Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: off by 1.5e-7 at most. */
static inline float erf_of(float x) {
    const float t = fabsf(x);
    const float k = 1.0f / (1.0f + 0.3275911f * t);
    float p = 1.061405429f;
    p = p * k - 1.453152027f;
    p = p * k + 1.421413741f;
    p = p * k - 0.284496736f;
    p = p * k + 0.254829592f;
    return copysignf(1.0f - p * k * oe_exp_f32(-t * t), x);
}

OE_TARGET_CLONES void oe_gelu(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float v = x[i];
        y[i] = 0.5f * v * (1.0f + erf_of(v * 0.70710678f));
    }
}

void oe_gelu_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    (void)unused;
    const part p = part_of(dst, ith, nth);
    oe_gelu(p.from, p.to, p.n);
}

OE_TARGET_CLONES void oe_gelu_tanh(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float v = x[i];
        const float slope = -v * (1.59576912f + 0.0713548163f * v * v); /* sqrt(8 / pi), and 0.044715 times that */
        y[i] = v / (1.0f + oe_exp_f32(slope > 87.0f ? 87.0f : slope));
    }
}

void oe_gelu_tanh_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    (void)unused;
    const part p = part_of(dst, ith, nth);
    oe_gelu_tanh(p.from, p.to, p.n);
}

/* exp(y) for y in -40 .. 0: 2^n * exp(r), |r| <= ln(2) / 2, and exp(r) by its Taylor series to r^10 (the next term is
 * below 3e-13). */
static inline double exp_of(double y) {
    /* Adding 1.5 * 2^52 rounds to the nearest integer, which the low bits then hold. */
    const double shifted = y * 1.4426950408889634 + 6755399441055744.0;
    const double n = shifted - 6755399441055744.0;
    const double r = (y - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33; /* ln(2) in two parts */
    double p = 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * oe_double_of_bits((oe_double_bits(shifted) + 1023u) << 52); /* the rest of the constant is shifted out */
}

/* From 20 on tanh is 1 in a float, so that its exponential needs no more. */
static inline double tanh_of(double z) {
    const double size = fabs(z) > 20.0 ? 20.0 : fabs(z); /* NaN stays NaN */
    const double e = exp_of(-2.0 * size), far = (1.0 - e) / (1.0 + e);
    const double near = size - size * size * size * (1.0 / 3.0); /* the next term is below 2 * size^5 / 15 */
    return copysign(size < 1e-3 ? near : far, z);
}

OE_TARGET_CLONES void oe_soft_cap(const float *x, float *y, int64_t n, float cap) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = (float)(cap * tanh_of((double)x[i] / cap));
    }
}

void oe_soft_cap_op(struct ggml_tensor *dst, int ith, int nth, void *cap_bits) {
    const part p = part_of(dst, ith, nth);
    oe_soft_cap(p.from, p.to, p.n, oe_float_of_bits((uint32_t)(uintptr_t)cap_bits));
}
