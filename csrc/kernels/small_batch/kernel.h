/* Small-batch matmul: products of weights with few rows of activations. It serves decoding, of one caller or several,
 * and prompts where ml/weights/kernel_choice.py found these kernels to be the fastest (up to 512 rows).
 *
 * Weights are read as they lie in GGUF files. Activations are first quantized to 8 bits, as in ggml; for F16
 * weights they stay f32, for BF16 they are rounded to it (floats.h). Vector kernels take 16 (AVX-512) or 8 (AVX2,
 * NEON) rows of weights at a time, one in each 32-bit lane, unpack a block of them once, and multiply it with all rows
 * of activations. A single row of activations waits mainly for memory; there the lanes are 4 blocks each of 4 (or 2)
 * rows of weights, so that the working set fits the L1 cache. So they may be for a few rows, too: with AVX-512 for up
 * to 8 in blocks of 32, and for 2 in most types' blocks of 256 (oe_sb_variant has the choice). AVX-512 multiplies most
 * types as they lie there, and turns the sums instead (load_fours, whole_blocks.h).
 *
 * Sums within a block are whole numbers. The blocks of a row are added up in order with plain float operations (no
 * contraction: the build passes -ffp-contract=off), every fourth block to one of four sums s0 to s3, and the result is
 * (s0 + s1) + (s2 + s3). So a result has the same bits on every instruction set, with any number of rows and threads.
 *
 * With AMX, tiles multiply OE_SB_MANY and more rows of activations (amx_product.h), to the same bits.
 *
 * Each weight type is one file (q4_k.c, ..), which defines the layout and the product of its blocks, in plain C, with
 * the vectors of lanes.h and with AMX's tiles. The build compiles it once for each instruction set, with the set's name
 * as OE_SB_SET, OE_SB_SCALAR for plain C and OE_SB_TILES for AMX. A new type needs a file, and its name in oe_sb_type,
 * kernel.c and CMakeLists.txt. */
#ifndef OE_SB_KERNEL_H
#define OE_SB_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oe_sb_type {
    OE_SB_Q4_K,
    OE_SB_Q6_K,
    OE_SB_Q5_K,
    OE_SB_Q3_K,
    OE_SB_Q2_K,
    OE_SB_IQ4_XS,
    OE_SB_Q4_0,
    OE_SB_Q8_0,
    OE_SB_MXFP4,
    OE_SB_Q4_1,
    OE_SB_Q5_0,
    OE_SB_Q5_1,
    OE_SB_IQ4_NL,
    OE_SB_F16,
    OE_SB_BF16,
    OE_SB_F16_WHOLE, /* F16 weights, with activations of 16 bits (whole16.h): for many rows, as image towers have */
    OE_SB_TYPES
} oe_sb_type;

typedef enum oe_sb_isa {
    OE_SB_PLAIN,
    OE_SB_AVX2,
    OE_SB_AVX_VNNI,
    OE_SB_AVX512,
    OE_SB_AMX,
    OE_SB_NEON, /* with SDOT */
    OE_SB_I8MM, /* NEON with SDOT and SMMLA */
    OE_SB_ISAS
} oe_sb_isa;

#define OE_SB_GROUP 16 /* threads share out results along m in multiples of this */
#define OE_SB_MANY 20  /* from so many rows of activations on, AMX's tiles are faster than vectors (measured) */
#define OE_SB_ROWS_BEHIND 3 /* rows of activations behind the last that kernels read, at most (vector_product.h) */
#define OE_QUAD 4      /* blocks of activations come in fours; the last four of a row is padded with 0 */

/* How a product fetches weights before it reads them. Which way is the fastest depends on the CPU and the type: a CPU
 * waits when it is asked for more lines at once than it can have in flight. */
typedef enum oe_sb_fetch {
    OE_SB_FETCH_SPREAD, /* into L1, a few lines at a time */
    OE_SB_FETCH_BURST,  /* into L1, all lines of a step at once */
    OE_SB_FETCH_L2,     /* into L2, a few lines at a time */
    OE_SB_FETCH_DEEP,   /* a few lines, and those OE_SB_DEEPER further on; quantized weights pass by L2 and L3 (NTA) */
    OE_SB_FETCH_NONE    /* left to the CPU's own prefetchers */
} oe_sb_fetch;

#define OE_SB_DEEPER 16384 /* bytes; half of it and thrice as much were slower on Zen 5 (measured) */

/* A product's variant, in ways that change no bit of its results. */
typedef struct oe_sb_variant {
    oe_sb_fetch fetch;
    bool two_streams; /* read weights at two places by turns; for a single row of activations, of a quantized type */
    bool rows_in_lanes; /* for several rows of activations, a row of weights in each lane where the kernel would have
                         * fours of blocks: CPUs differ in which of the two is faster */
} oe_sb_variant;

typedef struct oe_sb_product {
    const uint8_t *weights; /* [m] rows of `blocks` blocks */
    const uint8_t *next;    /* weights that are read next, whose first lines are fetched at the end of these; or NULL */
    size_t row_bytes;
    const void *acts;       /* [blocks / OE_QUAD][rows][OE_QUAD] oe_act256, oe_act32 or 16 numbers, or in tiles (see
                             * oe_quad_put). For multiply_interleaved as oe_quad_store puts each four */
    const void *packed;     /* the same as oe_act_panel (packed.h), for each 32 rows oe_chunks(blocks); or NULL */
    int64_t blocks;
    int64_t m;
    int64_t rows;
    oe_sb_variant variant;
    float *out;             /* rows of m */
    const int32_t *places;  /* [rows] the row of `out` for each row's results; NULL: in order */
} oe_sb_product;

static inline float *oe_sb_out(const oe_sb_product *p, int64_t row) {
    return p->out + (p->places ? p->places[row] : row) * p->m;
}

/* Computes the results first .. last - 1 along m, for all rows. */
typedef void (*oe_sb_multiply)(const oe_sb_product *p, int64_t first, int64_t last);

/* Operations whose results become activations at once, without going through memory. Counts are multiples of 16. The
 * bits are the same with every instruction set. */
typedef struct oe_sb_fused {
    /* silu(gate) * up (Shazeer 2020), with silu(x) = x / (1 + exp(-x)). */
    void (*swiglu)(const float *gate, const float *up, int64_t n, float *to);
    /* 1 / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019). */
    float (*norm_factor)(const float *x, int64_t n, float eps);
    /* x * factor * weight. */
    void (*scale)(const float *x, float factor, const float *weight, int64_t n, float *to);
} oe_sb_fused;

typedef struct oe_sb_kernel oe_sb_kernel;

struct oe_sb_kernel {
    int64_t block;    /* numbers in a block, of weights and of activations alike */
    size_t act_bytes; /* of a block of activations */
    void (*quantize)(const float *x, int64_t blocks, void *quad); /* one to OE_QUAD blocks */
    const oe_sb_fused *fused;
    oe_sb_multiply multiply;
    oe_sb_multiply multiply_interleaved; /* for up to `interleaved` rows of activations, or NULL */
    const oe_sb_kernel *for_few; /* what takes fewer than OE_SB_MANY rows of activations; NULL: this */
    bool packs;                  /* oe_sb_quantize_op writes `packed` behind `acts`, and `multiply` reads it */
    int64_t interleaved;
    bool in_tiles; /* activations lie in tiles (oe_quad_put) */
    int64_t whole; /* bytes of each block that multiply_interleaved has in one piece; others in words */
    int64_t most_missing; /* percent of the blocks of a row's fours with which multiply_interleaved is the faster */
};

/* The largest of the fewest equal shares of n that are at most `most`. */
static inline int64_t oe_share_of(int64_t n, int64_t most) {
    const int64_t shares = (n + most - 1) / most;
    return (n + shares - 1) / shares;
}

#define OE_ACT_TILE 6

/* Rows of activations that lie together: OE_ACT_TILE or fewer. */
typedef struct oe_act_tile {
    int64_t first, rows;
} oe_act_tile;

/* The tile that a row is in: the first ones may be a row larger. */
static inline oe_act_tile oe_act_tile_of(int64_t rows, int64_t row) {
    const int64_t tiles = (rows + OE_ACT_TILE - 1) / OE_ACT_TILE, least = rows / tiles, larger = rows % tiles;
    const int64_t before = larger * (least + 1);
    if (row < before) {
        return (oe_act_tile){row / (least + 1) * (least + 1), least + 1};
    }
    return (oe_act_tile){before + (row - before) / least * least, least};
}

/* NULL where this build or this CPU lacks the instructions. With fewer than OE_SB_GROUP results, the scalar kernel. */
const oe_sb_kernel *oe_sb_kernel_find(oe_sb_type type, oe_sb_isa isa, int64_t m);

static inline const oe_sb_kernel *oe_sb_kernel_for(const oe_sb_kernel *kernel, int64_t rows) {
    return kernel->for_few && rows < OE_SB_MANY ? kernel->for_few : kernel;
}

/* Whether rows of k numbers are multiplied by multiply_interleaved, which takes as long for a part of four blocks as
 * for all of them. */
static inline bool oe_sb_interleaves(const oe_sb_kernel *kernel, oe_sb_variant variant, int64_t k, int64_t rows) {
    const int64_t blocks = k / kernel->block, whole = (blocks + OE_QUAD - 1) / OE_QUAD * OE_QUAD;
    return rows <= (variant.rows_in_lanes && kernel->interleaved > 1 ? 1 : kernel->interleaved) &&
           100 * (whole - blocks) <= kernel->most_missing * whole;
}

/* The name of this file's kernel of a type, for the instruction set that it is compiled for: oe_sb_q4_k_avx2. */
#define OE_SB_KERNEL(type) OE_SB_KERNEL_OF(type, OE_SB_SET)
#define OE_SB_KERNEL_OF(type, set) OE_SB_KERNEL_OF_SET(type, set)
#define OE_SB_KERNEL_OF_SET(type, set) oe_sb_##type##_##set

#ifdef __cplusplus
}
#endif

#endif
