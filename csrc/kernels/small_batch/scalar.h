/* Shared by the plain C twins of the kernels for quantized weights. */
#ifndef OE_SB_SCALAR_H
#define OE_SB_SCALAR_H

#include <string.h>

#include "base/f16.h"
#include "kernels/small_batch/activations.h"

static inline float oe_sb_read_f16(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return oe_f16_to_f32(half);
}

static inline int32_t oe_sb_dot(const int8_t *codes, const int8_t *q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += codes[i] * q[i];
    }
    return sum;
}

/* A block of 32 weights d * code[i]: Q4_0, Q8_0, MXFP4. */
typedef struct oe_sb_block32 {
    float d;
    int8_t code[32];
} oe_sb_block32;

static inline float oe_sb_block32_product(const oe_sb_block32 *x, const oe_act32 *act) {
    return x->d * (float)oe_sb_dot(x->code, act->q, 32) * act->d;
}

#endif
