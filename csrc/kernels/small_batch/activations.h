/* Formats of activations: quantized to 8 bits for quantized weights, f32 for F16 (or whole
 * numbers of 16 bits), rounded to BF16 for BF16. */
#ifndef OE_SB_ACTIVATIONS_H
#define OE_SB_ACTIVATIONS_H

#include "kernels/small_batch/kernel.h"

/* 256 activations x[i] = d * q[i], ggml's Q8_K with positive d. Every 4 bytes of it are a word that kernels load. */
typedef struct oe_act256 {
    int8_t q[256];
    float d;
    int16_t sum16[16]; /* of 16 values each */
    int16_t sum32[8];
    int32_t unused[3]; /* so that q lies in whole cache lines */
} oe_act256;

/* 32 activations, ggml's Q8_0: d is rounded to f16. */
typedef struct oe_act32 {
    float d;
    int32_t minus8;   /* -8 times the sum of the values: undoes the offset of Q4_0's codes */
    int32_t minus128; /* -128 times that sum: undoes the offset that kernels add to signed codes */
    int32_t unused;   /* so that few q lie in two cache lines */
    int8_t q[32];
} oe_act32;

#define OE_WHOLE16 (OE_QUAD * 16)

/* A quad of 16 numbers each, x[i] = d * q[i]. Of each 32, numbers i and 16 + i are side by side. */
typedef struct oe_act_whole16 {
    int16_t q[OE_WHOLE16];
    float d;
    int32_t unused[3];
} oe_act_whole16;

/* The set of instructions that activations.c is compiled for: those of this file's kernels, or lesser ones. */
#if defined(OE_SB_SCALAR)
#define OE_SB_ACTS_SET scalar
#elif defined(OE_NEON)
#define OE_SB_ACTS_SET neon
#elif defined(__AVX512F__)
#define OE_SB_ACTS_SET avx512
#else
#define OE_SB_ACTS_SET avx2
#endif
#define OE_SB_ACTS(name) OE_SB_ACTS_OF(name, OE_SB_ACTS_SET)
#define OE_SB_ACTS_OF(name, set) OE_SB_ACTS_OF_SET(name, set)
#define OE_SB_ACTS_OF_SET(name, set) oe_sb_##name##_##set

/* Make up to OE_QUAD blocks of activations of 256, 32 or 16 floats, for F16 and BF16 weights. Kernels with the same
 * function can share activations. */
void OE_SB_ACTS(quantize256)(const float *x, int64_t blocks, void *quad);
void OE_SB_ACTS(quantize32)(const float *x, int64_t blocks, void *quad);
void OE_SB_ACTS(copy16)(const float *x, int64_t blocks, void *quad);
void OE_SB_ACTS(whole16)(const float *x, int64_t blocks, void *quad);
void OE_SB_ACTS(round16)(const float *x, int64_t blocks, void *quad);

extern const oe_sb_fused OE_SB_ACTS(fused);

/* The kernel of a type of weights whose blocks are multiplied with such activations. */
#ifdef OE_SB_TILES
#define OE_SB_DEFINE(type, ...)                                                                                        \
    extern const oe_sb_kernel OE_SB_KERNEL_OF(type, avx512);                                                           \
    static void oe_multiply(const oe_sb_product *p, int64_t first, int64_t last) {                                     \
        if (!oe_multiply_with_tiles(p, first, last)) {                                                                 \
            OE_SB_KERNEL_OF(type, avx512).multiply(p, first, last);                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    const oe_sb_kernel OE_SB_KERNEL(type) = {                                                                          \
        __VA_ARGS__, oe_multiply, NULL, &OE_SB_KERNEL_OF(type, avx512), PACKS, 0, false, 0, 0}
#else
#define OE_SB_DEFINE(type, ...)                                                                                        \
    const oe_sb_kernel OE_SB_KERNEL(type) = {                                                                          \
        __VA_ARGS__, oe_multiply, MULTIPLY_INTERLEAVED, NULL, false, INTERLEAVED_ROWS, false, WHOLE, MOST_MISSING}
#endif
#define OE_SB_DEFINE_256(type)                                                                                      \
    OE_SB_DEFINE(type, 256, sizeof(oe_act256), OE_SB_ACTS(quantize256), &OE_SB_ACTS(fused))
#define OE_SB_DEFINE_32(type)                                                                                       \
    OE_SB_DEFINE(type, 32, sizeof(oe_act32), OE_SB_ACTS(quantize32), &OE_SB_ACTS(fused))

#endif
