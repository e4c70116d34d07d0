/* exp without the library, for loops that the compiler vectorizes. */
#ifndef OE_EXP_F32_H
#define OE_EXP_F32_H

#include "base/float_bits.h"

/* exp(y) for y up to 87, to about 2e-7 of its value; below -87, where floats end, as for -87. */
static inline float oe_exp_f32(float y) {
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
    return p * oe_float_of_bits((oe_float_bits(shifted) + 127u) << 23); /* the rest of the constant is shifted out */
}

#endif
