/* Conversion of half-precision numbers in plain C, for code without the instructions. */
#ifndef OE_F16_H
#define OE_F16_H

#include "base/float_bits.h"

static inline float oe_f16_to_f32(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
    if (exponent == 0) {
        const float small = (float)mantissa * 0x1p-24f;
        return sign ? -small : small;
    }
    return oe_float_of_bits(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13);
}

#endif
