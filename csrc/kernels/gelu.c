#include "kernels/gelu.h"

#include <math.h>
#include <string.h>

#include "base/target_clones.h"
#include "ggml.h"

#define SHARE 4096 /* fewest numbers per thread: fewer take less time than sharing them out */

/* exp(y) for y <= 0, to about 2e-7 of its value; below -87, where floats end, as for -87. */
static inline float exp_of_negative(float y) {
    y = y < -87.0f ? -87.0f : y;
    /* 2^n * exp(r), |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds to the nearest integer, which the low bits then hold. */
    const float shifted = y * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f; /* ln(2) in two parts */
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127u) << 23; /* the rest of the constant is shifted out */
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
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
    return copysignf(1.0f - p * k * exp_of_negative(-t * t), x);
}

OE_TARGET_CLONES void oe_gelu(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float v = x[i];
        y[i] = 0.5f * v * (1.0f + erf_of(v * 0.70710678f));
    }
}

void oe_gelu_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    (void)unused;
    const int64_t n = ggml_nelements(dst);
    int64_t share = (n + nth - 1) / nth;
    share = share < SHARE ? SHARE : share;
    const int64_t begin = share * ith;
    if (begin < n) {
        const int64_t left = n - begin;
        oe_gelu((const float *)dst->src[0]->data + begin, (float *)dst->data + begin, left < share ? left : share);
    }
}
