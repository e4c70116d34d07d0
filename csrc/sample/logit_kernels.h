/* Loops over rows of logits, one source compiled for several instruction sets; the one to use is found at run time.
 *
 * All give the same bits: sums that a result depends on are sums of integers, floats are neither contracted nor
 * reordered (the build says -ffp-contract=off), and nothing approximates. So a seed's tokens are the same on every
 * machine, and the tests hold each set to the scalar one.
 *
 * Definition. With d = (max - x) * inverse in float (0 <= d, capped below 32), an entry x has
 *   rank   q = floor(d * 2^24)             order of probability
 *   weight w = round(exp(-d) * 2^40)       2^40 for the most probable entry */
#ifndef OE_LOGIT_KERNELS_H
#define OE_LOGIT_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OE_BLOCK 64                       /* entries that are looked at together */
#define OE_RANK_ONE ((uint32_t)1 << 24)   /* rank of d = 1 */
#define OE_RANK_LIMIT ((uint32_t)1 << 29) /* above every rank */
#define OE_WEIGHT_ONE ((uint64_t)1 << 40)
#define OE_DIST_BINS 1024 /* a power of two */
#define OE_BIN_COPIES 4 /* neighbours go into different copies: where most share a bin, additions would wait in line */

/* OE_ROWS_BASELINE: what every CPU of the architecture has; SSE2, NEON. */
typedef enum oe_logit_kernel_set { OE_ROWS_SCALAR, OE_ROWS_BASELINE, OE_ROWS_AVX2, OE_ROWS_AVX512,
        OE_LOGIT_KERNEL_SETS } oe_logit_kernel_set;

/* Kernels that take a row treat the entries that its mask disallows as if they were -inf. */
typedef struct oe_logits {
    const float *x;         /* [n] */
    const uint32_t *mask;   /* [oe_mask_words(n)] entry i is allowed where bit i % 32 of word i / 32 is 1; NULL: all */
    const float *block_max; /* [oe_block_count(n)] no allowed entry of block b is above block_max[b] */
    int32_t n;
} oe_logits;

static inline int32_t oe_block_count(int32_t n) { return n / OE_BLOCK + (n % OE_BLOCK != 0); }

static inline int32_t oe_mask_words(int32_t n) { return n / 32 + (n % 32 != 0); }

static inline bool oe_is_allowed(const uint32_t *mask, int32_t i) { return !mask || mask[i / 32] >> i % 32 & 1; }

/* Bit j: whether entry j of the block is allowed. Bits of the mask beyond the row are ignored. */
static inline uint64_t oe_allowed(const uint32_t *mask, int32_t n, int32_t block) {
    const int32_t left = n - block * OE_BLOCK;
    const uint64_t low = mask[2 * block], high = left > 32 ? mask[2 * block + 1] : 0;
    const uint64_t bits = high << 32 | low;
    return left < OE_BLOCK ? bits & (((uint64_t)1 << left) - 1) : bits;
}

typedef struct oe_scale {
    float max;
    float inverse; /* 1 / temperature: > 0, finite */
} oe_scale;

static inline uint32_t oe_rank_of_distance(float d) { return (uint32_t)(int32_t)(d * (float)OE_RANK_ONE); }

static inline float oe_distance(float x, oe_scale scale) {
    float d = (scale.max - x) * scale.inverse;
    d = d > 0.0f ? d : 0.0f;
    return d < 31.99f ? d : 31.99f; /* exp(-31.99) * 2^40 rounds to 0 */
}

static inline uint32_t oe_rank(float x, oe_scale scale) { return oe_rank_of_distance(oe_distance(x, scale)); }

/* The entries of rank first .. first + span. */
typedef struct oe_window {
    uint32_t first, span;
} oe_window;

typedef struct oe_weights {
    uint64_t total;
    uint64_t kept; /* of the entries whose rank is at most the one asked for */
} oe_weights;

/* What entropy is made of. Entries at -inf do not count. */
typedef struct oe_surprise {
    int32_t count;
    uint64_t total;    /* sum of the weights */
    uint64_t distance; /* sum of weight * d, each product rounded down to 2^-40 */
} oe_surprise;

static inline uint64_t oe_weighted_distance(uint32_t rank, uint64_t weight) {
    return weight * rank >> 24; /* exp(-d) * d <= 1 / e, so that the product stays below 2^63 */
}

/* What variance is made of: sums over q = floor((max - x) * factor), below 2^31, of the entries above -inf. */
typedef struct oe_moments {
    int32_t count;
    uint64_t sum, squares_low, squares_high; /* of q * q the lower 32 bits and the others */
} oe_moments;

static inline uint32_t oe_step_of(float x, float max, double factor) {
    const double q = ((double)max - (double)x) * factor;
    return (uint32_t)(int32_t)(q > 0.0 ? (q < 2147483647.0 ? q : 2147483647.0) : 0.0);
}

/* What is in a window. */
typedef struct oe_extent {
    int32_t count;
    float low, high; /* smallest and largest entry; of no meaning when there are none */
} oe_extent;

typedef struct oe_logit_kernels {
    /* Fills block_max[oe_block_count(n)] and returns how many entries the mask (NULL: all) allows. -1 when x[n] holds a
     * NaN or +inf, allowed or not; block_max is then of no use. */
    int32_t (*scan)(const float *x, int32_t n, const uint32_t *mask, float *block_max);

    /* max[j], j < OE_BLOCK: the largest of the entries j of the blocks first, first + stride, first + 2 * stride .. */
    void (*column_maxima)(const oe_logits *row, int32_t first, int32_t stride, float *max);

    /* One bit for each entry of a block: whether it is larger than `least`. */
    uint64_t (*above)(const oe_logits *row, int32_t block, float least);

    /* Ranks and weights of one block. */
    void (*weigh)(const float *x, oe_scale scale, uint32_t *rank, uint64_t *weight);

    /* Sums of the row's weights. Unless `bins` is NULL, those in the window are also added to
     * bins[(rank - first) >> shift][any copy], of OE_DIST_BINS. */
    oe_weights (*sum)(const oe_logits *row, oe_scale scale, uint32_t keep, oe_window window, int shift,
                      uint64_t (*bins)[OE_BIN_COPIES]);

    /* `sum` for the bins only: looks no closer at blocks that have nothing in the window. */
    void (*bin)(const oe_logits *row, oe_scale scale, oe_window window, int shift, uint64_t (*bins)[OE_BIN_COPIES]);

    oe_extent (*extent)(const oe_logits *row, oe_scale scale, oe_window window);

    /* Which entries are in the window, in order, from block *block on, which moves on behind the last block that was
     * looked at: the last one, or the one after which another might not fit into at[room]. room >= OE_BLOCK. */
    int32_t (*pick)(const oe_logits *row, oe_scale scale, oe_window window, int32_t *block, int32_t *at, int32_t room);

    oe_surprise (*surprise)(const oe_logits *row, oe_scale scale);

    /* The smallest entry above -inf, or +inf when there is none; and the moments of all. */
    float (*least)(const oe_logits *row);
    oe_moments (*moments)(const oe_logits *row, float max, double factor);

    /* The entry of the window that has n before it, or -1. */
    int32_t (*nth)(const oe_logits *row, oe_scale scale, oe_window window, int32_t n);
} oe_logit_kernels;

/* NULL where this build or this CPU lacks the instructions. OE_ROWS_SCALAR and OE_ROWS_BASELINE are always there. */
const oe_logit_kernels *oe_logit_kernels_find(oe_logit_kernel_set set);

/* Its name: "scalar", "sse2" or "neon" or "baseline", "avx2", "avx512". */
const char *oe_logit_kernels_name(oe_logit_kernel_set set);

#ifdef __cplusplus
}
#endif

#endif
