#include "kernels/small_batch/activations.h"

#include <math.h>
#include <string.h>

#include "base/f16.h"
#include "base/target_clones.h"

/* -- f16 ----------------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to nearest, ties to even, as the instructions do. */
static uint16_t f32_to_f16(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (size >= 0x477ff000u) { /* 65520 and more */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (size < 0x38800000u) { /* below the smallest normal number, 2^-14: the sum's last bit is worth 2^-24 */
        return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) & 0x7ffu));
    }
    return (uint16_t)(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));
}

/* -- activations --------------------------------------------------------------------------------------------------- */

/* The largest |x|; NaNs do not count. Floats without a sign are in the order of their bits, and compilers vectorize a
 * maximum of whole numbers, but not of floats. */
static inline float largest(const float *x, int n) {
    int32_t max = 0;
#pragma GCC unroll 1
    for (int i = 0; i < n; i++) {
        const int32_t size = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
        const int32_t number = size > 0x7f800000 ? 0 : size;
        max = number > max ? number : max;
    }
    return float_of((uint32_t)max);
}

/* The nearest whole number, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits below 1. NaN gives 0. (It is
 * ggml's arithmetic, so that numbers beyond 2^22 give the same result.) */
static inline int8_t nearest(float x) {
    const int32_t whole = (int32_t)(bits_of(x + 12582912.0f) & 0x007fffffu) - 0x00400000;
    return (int8_t)(uint8_t)(whole < 127 ? whole : 127);
}

OE_TARGET_CLONES
void oe_sb_quantize256(const float *x, void *to) {
    oe_act256 *act = to;
    const float max = largest(x, 256);
    const float inverse = 127.0f / max;
    act->d = max > 0 ? 1.0f / inverse : 0.0f;
    for (int i = 0; i < 256; i++) {
        act->q[i] = max > 0 ? nearest(inverse * x[i]) : 0;
    }
    for (int j = 0; j < 16; j++) {
        int16_t sum = 0;
        for (int i = 0; i < 16; i++) {
            sum = (int16_t)(sum + act->q[16 * j + i]);
        }
        act->sum16[j] = sum;
    }
    for (int j = 0; j < 8; j++) {
        act->sum32[j] = (int16_t)(act->sum16[2 * j] + act->sum16[2 * j + 1]);
    }
}

OE_TARGET_CLONES
void oe_sb_quantize32(const float *x, void *to) {
    oe_act32 *act = to;
    const float max = largest(x, 32);
    const float inverse = max > 0 ? 127.0f / max : 0.0f;
    int32_t sum = 0;
    act->d = oe_f16_to_f32(f32_to_f16(max / 127.0f));
    for (int i = 0; i < 32; i++) {
        act->q[i] = nearest(inverse * x[i]);
        sum += act->q[i];
    }
    act->minus8 = -8 * sum;
    act->minus128 = -128 * sum;
}

void oe_sb_copy16(const float *x, void *act) { memcpy(act, x, 16 * sizeof *x); }
