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

/* A block of 32 weights d * code[i]: Q4_0, Q8_0, MXFP4, Q5_0, IQ4_NL. */
typedef struct oe_sb_block32 {
    float d;
    int8_t code[32];
} oe_sb_block32;

static inline float oe_sb_block32_product(const oe_sb_block32 *x, const oe_act32 *act) {
    return x->d * (float)oe_sb_dot(x->code, act->q, 32) * act->d;
}

/* A block of 32 weights d * code[i] + m: Q4_1, Q5_1. The sum of the activations is known as -8 times it, so `m` is kept
 * as -1/8 of it; both factors are powers of 2, which change no bit of the product. */
typedef struct oe_sb_block32_from {
    float d, minus_eighth; /* of m */
    int8_t code[32];
} oe_sb_block32_from;

static inline float oe_sb_block32_from_product(const oe_sb_block32_from *x, const oe_act32 *act) {
    return (x->d * (float)oe_sb_dot(x->code, act->q, 32) + x->minus_eighth * (float)act->minus8) * act->d;
}

/* A block of 256 weights d * scale[j] * code[i], in 16 parts j (Q3_K, Q6_K) or 8 (IQ4_XS). */
typedef struct oe_sb_block256 {
    float d;
    int8_t scale[16];
    int8_t code[256];
} oe_sb_block256;

static inline float oe_sb_block256_product(int parts, const oe_sb_block256 *x, const oe_act256 *act) {
    const int n = 256 / parts;
    int32_t sum = 0;
    for (int j = 0; j < parts; j++) {
        sum += x->scale[j] * oe_sb_dot(x->code + n * j, act->q + n * j, n);
    }
    return x->d * (float)sum * act->d;
}

/* 32 codes of 4 bits from 16 bytes: the low halves are the first 16 codes, the high halves the others. */
static inline void oe_sb_codes_of_4_bits(const uint8_t *p, int8_t code[32]) {
    for (int i = 0; i < 16; i++) {
        code[i] = (int8_t)(p[i] & 15);
        code[16 + i] = (int8_t)(p[i] >> 4);
    }
}

/* Adds 16 to code i where bit i of these 4 bytes is set. */
static inline void oe_sb_add_fifth_bits(const uint8_t *p, int8_t code[32]) {
    for (int i = 0; i < 32; i++) {
        code[i] = (int8_t)(code[i] + (p[i / 8] >> i % 8 & 1) * 16);
    }
}

#endif
