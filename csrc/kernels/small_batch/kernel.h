/* Products of weights with few rows of activations: one caller or several decoding together, and prompts where
 * ml/kernel_choice.py found these kernels to be the faster ones (up to 512 rows).
 *
 * Weights are read as they lie in GGUF files. Quantized ones are multiplied with activations that are quantized first,
 * to 8 bits, as ggml does it for the same products; 16-bit ones with activations as they are (floats.c). Kernels with
 * vectors take 16 (AVX-512) or 8 (AVX2) weight rows at a time, one in each 32-bit lane, unpack a block of them once and
 * multiply it with all rows of activations. For a single row, which waits for memory more than for anything else, the
 * lanes are 4 blocks each of 4 (AVX2: 2) weight rows: what is in use then fits the first cache.
 *
 * Sums inside of a block are whole numbers. The blocks of a row are added up in order with plain float operations (no
 * contraction: the build says -ffp-contract=off), every fourth block to one of four sums s0 to s3, and the result is
 * (s0 + s1) + (s2 + s3). So it is the same bits on every instruction set, and does not depend on how many rows share
 * the product nor on the number of threads.
 *
 * A type of weights is one file (q4_k.c, ..), which says how its blocks are laid out and multiplied, in plain C and
 * with the vectors of lanes.h. The build compiles it once for each instruction set, with the set's name as OE_SB_SET,
 * and OE_SB_SCALAR for plain C. A new type is a file, its name in oe_sb_type, in kernel.c and in CMakeLists.txt. */
#ifndef OE_SB_KERNEL_H
#define OE_SB_KERNEL_H

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
    OE_SB_F16,
    OE_SB_BF16,
    OE_SB_TYPES
} oe_sb_type;

typedef enum oe_sb_isa { OE_SB_PLAIN, OE_SB_AVX2, OE_SB_AVX_VNNI, OE_SB_AVX512, OE_SB_ISAS } oe_sb_isa;

#define OE_SB_GROUP 16 /* results along m are shared out between threads in multiples of this */
#define OE_QUAD 4      /* blocks of activations lie in fours; those that a row lacks in its last four are 0 */

typedef struct oe_sb_product {
    const uint8_t *weights; /* [m] rows of `blocks` blocks */
    size_t row_bytes;
    const void *acts;       /* [blocks / OE_QUAD][rows][OE_QUAD] oe_act256, oe_act32 or 16 floats. For multiply_single
                             * the words of each four are interleaved: the first of each, the second of each, .. */
    int64_t blocks;
    int64_t m;
    int64_t rows;
    float *out;             /* rows of m */
    const int32_t *places;  /* [rows] which row of `out` each row's results go to; NULL: in order */
} oe_sb_product;

static inline float *oe_sb_out(const oe_sb_product *p, int64_t row) {
    return p->out + (p->places ? p->places[row] : row) * p->m;
}

/* Results first .. last - 1 along m, of all rows. */
typedef void (*oe_sb_multiply)(const oe_sb_product *p, int64_t first, int64_t last);

typedef struct oe_sb_kernel {
    int64_t block;    /* weights in one block, activations in one of theirs */
    size_t act_bytes; /* of a block of activations */
    void (*quantize)(const float *x, void *act);
    oe_sb_multiply multiply;
    oe_sb_multiply multiply_single; /* of a single row of activations, or NULL */
} oe_sb_kernel;

/* NULL where this build or this CPU lacks the instructions. For fewer than OE_SB_GROUP results the scalar one. */
const oe_sb_kernel *oe_sb_kernel_find(oe_sb_type type, oe_sb_isa isa, int64_t m);

/* The name of this file's kernel of a type, for the instruction set that it is compiled for: oe_sb_q4_k_avx2. */
#define OE_SB_KERNEL(type) OE_SB_KERNEL_OF(type, OE_SB_SET)
#define OE_SB_KERNEL_OF(type, set) OE_SB_KERNEL_OF_SET(type, set)
#define OE_SB_KERNEL_OF_SET(type, set) oe_sb_##type##_##set

#ifdef __cplusplus
}
#endif

#endif
