/* Products of weights with few rows of activations (1 to about 30: one caller or several decoding together). What
 * follows is about quantized weights; small_batch_floats.h has those of 16 bits.
 *
 * Weights are read as they lie in GGUF files. Activations are quantized first, to 8 bits, as ggml does it for the same
 * products. Kernels take 16 (AVX-512) or 8 (AVX2) weight rows at a time, one in each 32-bit lane, unpack a block of
 * them once and multiply it with all rows of activations. For a single row, which waits for memory more than for
 * anything else, the lanes are 4 blocks each of 4 (AVX2: 2) weight rows: what is in use then fits the first cache.
 *
 * Sums inside of a block are whole numbers. The blocks of a row are added up in order with plain float operations (no
 * contraction: the build says -ffp-contract=off), every fourth block to one of four sums s0 to s3, and the result is
 * (s0 + s1) + (s2 + s3). So it is the same bits on every instruction set, and does not depend on how many rows share
 * the product nor on the number of threads. */
#ifndef OE_SB_H
#define OE_SB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oe_sb_type {
    OE_SB_Q4_K,
    OE_SB_Q6_K,
    OE_SB_Q4_0,
    OE_SB_Q8_0,
    OE_SB_MXFP4,
    OE_SB_TYPES, /* quantized; those that follow have arrays of their own */
    OE_SB_F16 = OE_SB_TYPES,
    OE_SB_BF16,
} oe_sb_type;

#define OE_SB_FLOATS 2

/* Bytes of a block of weights, as GGUF has them. */
#define OE_Q4_K_BYTES 144
#define OE_Q6_K_BYTES 210
#define OE_Q4_0_BYTES 18
#define OE_Q8_0_BYTES 34
#define OE_MXFP4_BYTES 17

typedef enum oe_sb_isa { OE_SB_SCALAR, OE_SB_AVX2, OE_SB_AVX_VNNI, OE_SB_AVX512, OE_SB_ISAS } oe_sb_isa;

#define OE_SB_GROUP 16 /* results along m are shared out between threads in multiples of this */
#define OE_QUAD 4       /* blocks of activations lie in fours; those that a row lacks in its last four are 0 */

/* 256 activations x[i] = d * q[i], ggml's Q8_K with positive d. Every 4 bytes of it are a word that kernels load. */
typedef struct oe_act256 {
    float d;
    int16_t sum16[16]; /* of 16 values each */
    int16_t sum32[8];
    int8_t q[256];
} oe_act256;

/* 32 activations, ggml's Q8_0: d is rounded to f16. */
typedef struct oe_act32 {
    float d;
    int32_t minus8;   /* -8 times the sum of the values, which undoes the offset of Q4_0's codes */
    int32_t minus128; /* -128 times: the offset that kernels give Q8_0's and MXFP4's */
    int8_t q[32];
} oe_act32;

typedef struct oe_sb_product {
    const uint8_t *weights; /* [m] rows of `blocks` blocks */
    size_t row_bytes;
    const void *acts;       /* [blocks / OE_QUAD][rows][OE_QUAD] oe_act256, oe_act32 or 16 floats. For multiply_one the
                             * words of each four are interleaved: the first of each, the second of each, .. */
    int64_t blocks;
    int64_t m;
    int64_t rows;
    float *out;             /* rows of m */
    const int32_t *places;  /* [rows] which row of `out` each row's results go to; NULL: in order */
} oe_sb_product;

static inline float *oe_sb_out(const oe_sb_product *p, int64_t row) {
    return p->out + (p->places ? p->places[row] : row) * p->m;
}

typedef struct oe_sb_kernel {
    int64_t block;      /* weights in one block, activations in one of theirs */
    size_t act_bytes;   /* of activations */
    void (*quantize)(const float *x, void *act);
    void (*multiply)(const oe_sb_product *p, int64_t first, int64_t last); /* results first .. last - 1 along m */
    void (*multiply_one)(const oe_sb_product *p, int64_t first, int64_t last); /* of a single row, or NULL */
} oe_sb_kernel;

/* NULL where this build or this CPU lacks the instructions. For fewer than OE_SB_GROUP results the scalar one. */
const oe_sb_kernel *oe_sb_kernel_find(oe_sb_type type, oe_sb_isa isa, int64_t m);

/* Whether these kernels have been compared with ggml's on CPUs like this one: for those with AVX-512 but without VNNI,
 * which are served by AVX2 here and by their wider vectors in ggml, nobody has. */
bool oe_sb_compared(oe_sb_isa isa);

/* -- shared by the kernels' files ---------------------------------------------------------------------------------- */

uint16_t oe_f32_to_f16(float x);

void oe_sb_quantize256(const float *x, void *act);
void oe_sb_quantize32(const float *x, void *act);
void oe_sb_copy16(const float *x, void *act);

/* What an array of the kernels of one instruction set holds, given functions name_multiply and name_multiply_one. */
#define OE_SB_KERNELS(one)                                                                                             \
    {                                                                                                                  \
        [OE_SB_Q4_K] = {256, sizeof(oe_act256), oe_sb_quantize256, q4k_multiply, one(q4k)},                            \
        [OE_SB_Q6_K] = {256, sizeof(oe_act256), oe_sb_quantize256, q6k_multiply, one(q6k)},                            \
        [OE_SB_Q4_0] = {32, sizeof(oe_act32), oe_sb_quantize32, q40_multiply, one(q40)},                               \
        [OE_SB_Q8_0] = {32, sizeof(oe_act32), oe_sb_quantize32, q80_multiply, one(q80)},                               \
        [OE_SB_MXFP4] = {32, sizeof(oe_act32), oe_sb_quantize32, mxfp4_multiply, one(mxfp4)},                          \
    }
#define OE_SB_NONE(name) NULL

/* All zero where they are not compiled. */
extern const oe_sb_kernel oe_sb_scalar[OE_SB_TYPES];
extern const oe_sb_kernel oe_sb_avx2[OE_SB_TYPES];
extern const oe_sb_kernel oe_sb_avxvnni[OE_SB_TYPES];
extern const oe_sb_kernel oe_sb_avx512[OE_SB_TYPES];
extern const oe_sb_kernel oe_sb_floats_scalar[OE_SB_FLOATS];
extern const oe_sb_kernel oe_sb_floats_avx2[OE_SB_FLOATS];
extern const oe_sb_kernel oe_sb_floats_avx512[OE_SB_FLOATS];

#ifdef __cplusplus
}
#endif

#endif
