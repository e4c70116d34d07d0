#include "kernels/gelu.h"

#include <math.h>

#include "base/target_clones.h"
#include "ggml.h"
#include "kernels/exp_f32.h"

#define SHARE 4096 /* fewest numbers per thread: fewer take less time than sharing them out */

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
    const int64_t n = ggml_nelements(dst);
    int64_t share = (n + nth - 1) / nth;
    share = share < SHARE ? SHARE : share;
    const int64_t begin = share * ith;
    if (begin < n) {
        const int64_t left = n - begin;
        oe_gelu((const float *)dst->src[0]->data + begin, (float *)dst->data + begin, left < share ? left : share);
    }
}
