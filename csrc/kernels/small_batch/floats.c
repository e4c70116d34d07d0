/* Products of F16 and BF16 weights with the vectors of base/simd16.h. Activations are not rounded. Each of 16 lanes
 * adds up its products in order, 16 weights apart, with one rounding each, and the lanes are joined at the end: results
 * are the same bits with every instruction set, and whatever the other rows are. (Which NaN a NaN is may differ.) */
#include "base/simd16.h"
#include "kernels/small_batch/activations.h"

/* Rows of activations and of weights whose sums fit the registers. */
#if defined(OE_SB_SCALAR)
#define TILE 3
#define TILE_WEIGHTS 1
#elif defined(__AVX512F__)
#define TILE 6
#define TILE_WEIGHTS 4
#else
#define TILE 3
#define TILE_WEIGHTS 2
#endif

#define BYTES (2 * OE_LANES)
#define SINGLE_WEIGHTS 4 /* rows of weights at a time for a single row of activations */
#define NEAR_ENOUGH 4096 /* least distance in bytes to prefetch: nearer arrives too late */

INLINE lanes weights16(const oe_sb_type type, const uint8_t *x) {
    return type == OE_SB_F16 ? lanes_from_f16(x) : lanes_from_bf16(x);
}

typedef struct place { /* of a tile */
    int64_t row;  /* first row of activations */
    int64_t from; /* first row of weights */
    int64_t skip; /* rows of weights whose results are stored already */
    size_t ahead; /* distance to prefetch in bytes, or 0 */
} place;

/* TILE_WEIGHTS rows of weights from `first` on, or the last ones. */
INLINE place place_of(const oe_sb_product *p, int64_t row, int64_t first) {
    const int64_t from = first + TILE_WEIGHTS <= p->m ? first : p->m - TILE_WEIGHTS;
    return (place){row, from, first - from, 0};
}

/* As in the other kernels: each step fetches its share of the following rows, in order. It is short, so there is
 * nothing to spread. */
INLINE void prefetch(const oe_sb_product *p, size_t group, size_t done, size_t share, size_t ahead) {
    const size_t at = group + done + ahead;
    if (!ahead || p->variant.fetch == OE_SB_FETCH_NONE || at + share > (size_t)p->m * p->row_bytes) {
        return;
    }
    if (p->variant.fetch == OE_SB_FETCH_L2) {
#pragma GCC unroll 8
        for (size_t i = 0; i < share; i += 64) {
            __builtin_prefetch(p->weights + at + i, 0, 2);
        }
    } else {
#pragma GCC unroll 8
        for (size_t i = 0; i < share; i += 64) {
            __builtin_prefetch(p->weights + at + i);
        }
    }
}

INLINE void add_block(const oe_sb_type type, const int n_weights, const int n, const uint8_t *w, size_t row_bytes,
                      const float *act, lanes (*sum)[TILE]) {
    lanes x[SINGLE_WEIGHTS];
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
        x[i] = weights16(type, w + (size_t)i * row_bytes);
    }
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
        const lanes y = lanes_load(act + j * OE_QUAD * OE_LANES);
#pragma GCC unroll 4
        for (int i = 0; i < n_weights; i++) {
            sum[i][j] = lanes_fma(x[i], y, sum[i][j]);
        }
    }
}

INLINE void store(const int n_weights, const int n, const oe_sb_product *p, place at, lanes (*sum)[TILE]) {
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            const float total = lanes_sum(sum[i][j]);
            if (i >= at.skip) {
                oe_sb_out(p, at.row + j)[at.from + i] = total;
            }
        }
    }
}

/* Adds the products of blocks b .. end - 1; b is a multiple of OE_QUAD. */
INLINE void add_blocks(const oe_sb_type type, const int n_weights, const int n, const oe_sb_product *p, place at,
                       int64_t b, int64_t end, lanes (*sum)[TILE]) {
    const size_t group = (size_t)at.from * p->row_bytes, share = (size_t)n_weights * BYTES;
    const float *act = (const float *)p->acts + (b / OE_QUAD * p->rows + at.row) * OE_QUAD * OE_LANES;
    const uint8_t *w = p->weights + group + (size_t)b * BYTES;
    for (; b + OE_QUAD <= end; b += OE_QUAD, act += p->rows * OE_QUAD * OE_LANES) {
        prefetch(p, group, (size_t)b * share, OE_QUAD * share, at.ahead);
#pragma GCC unroll 4
        for (int i = 0; i < OE_QUAD; i++, w += BYTES) {
            add_block(type, n_weights, n, w, p->row_bytes, act + i * OE_LANES, sum);
        }
    }
    for (; b < end; b++, w += BYTES, act += OE_LANES) {
        add_block(type, n_weights, n, w, p->row_bytes, act, sum);
    }
}

INLINE void multiply_tile(const oe_sb_type type, const int n_weights, const int n, const oe_sb_product *p, place at) {
    lanes sum[SINGLE_WEIGHTS][TILE];
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            sum[i][j] = lanes_set(0);
        }
    }
    add_blocks(type, n_weights, n, p, at, 0, p->blocks, sum);
    store(n_weights, n, p, at, sum);
}

INLINE void multiply_any_tile(const oe_sb_type type, const int64_t n, const oe_sb_product *p, place at) {
    switch (n) {
    case 1: multiply_tile(type, TILE_WEIGHTS, 1, p, at); break;
    case 2: multiply_tile(type, TILE_WEIGHTS, 2, p, at); break;
    case 3: multiply_tile(type, TILE_WEIGHTS, 3, p, at); break;
#if TILE > 3
    case 4: multiply_tile(type, TILE_WEIGHTS, 4, p, at); break;
    case 5: multiply_tile(type, TILE_WEIGHTS, 5, p, at); break;
    case 6: multiply_tile(type, TILE_WEIGHTS, 6, p, at); break;
#endif
    }
}

/* -- many rows of activations -------------------------------------------------------------------------------------- */

#define MANY 24          /* rows; from so many on, activations are read too often from beyond the L1 cache (measured) */
#define PIECE_BLOCKS 32  /* of TILE rows of activations, which stay in the L1 cache for WEIGHT_GROUPS */
#define WEIGHT_GROUPS 16 /* times TILE_WEIGHTS rows of weights, which stay in the L2 cache for all rows */

/* One of the groups with a piece of TILE rows of activations. Its sums lie in memory meanwhile. */
INLINE void add_piece(const oe_sb_type type, const oe_sb_product *p, place at, int64_t b, int64_t end,
                      lanes (*sums)[TILE]) {
    lanes sum[SINGLE_WEIGHTS][TILE];
#pragma GCC unroll 4
    for (int i = 0; i < TILE_WEIGHTS; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < TILE; j++) {
            sum[i][j] = b ? sums[i][j] : lanes_set(0);
        }
    }
    add_blocks(type, TILE_WEIGHTS, TILE, p, at, b, end, sum);
#pragma GCC unroll 4
    for (int i = 0; i < TILE_WEIGHTS; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < TILE; j++) {
            sums[i][j] = sum[i][j];
        }
    }
}

/* Results first .. last - 1, WEIGHT_GROUPS groups at most, for TILE rows. */
INLINE void multiply_groups(const oe_sb_type type, const oe_sb_product *p, int64_t row, int64_t first, int64_t last) {
    lanes sums[WEIGHT_GROUPS][TILE_WEIGHTS][TILE];
    for (int64_t b = 0; b < p->blocks; b += PIECE_BLOCKS) {
        const int64_t end = p->blocks - b < PIECE_BLOCKS ? p->blocks : b + PIECE_BLOCKS;
        for (int64_t g = 0; first + g * TILE_WEIGHTS < last; g++) {
            add_piece(type, p, place_of(p, row, first + g * TILE_WEIGHTS), b, end, sums[g]);
        }
    }
    for (int64_t g = 0; first + g * TILE_WEIGHTS < last; g++) {
        store(TILE_WEIGHTS, TILE, p, place_of(p, row, first + g * TILE_WEIGHTS), sums[g]);
    }
}

/* The last TILE rows may overlap those before: the same bits are stored again. */
INLINE void multiply_many(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
    for (; first < last; first += WEIGHT_GROUPS * TILE_WEIGHTS) {
        const int64_t end = last - first < WEIGHT_GROUPS * TILE_WEIGHTS ? last : first + WEIGHT_GROUPS * TILE_WEIGHTS;
        for (int64_t row = 0; row < p->rows; row += TILE) {
            multiply_groups(type, p, row + TILE <= p->rows ? row : p->rows - TILE, first, end);
        }
    }
}

/* -- any number of rows -------------------------------------------------------------------------------------------- */

/* All rows of activations in tiles of equal size. */
INLINE void multiply_several(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
    for (; first < last; first += TILE_WEIGHTS) {
        place at = place_of(p, 0, first);
        at.ahead = TILE_WEIGHTS * p->row_bytes;
        for (int64_t left = p->rows; left > 0; at.ahead = 0) {
            const int64_t tiles = (left + TILE - 1) / TILE;
            const int64_t n = (left + tiles - 1) / tiles;
            multiply_any_tile(type, n, p, at);
            at.row += n;
            left -= n;
        }
    }
}

#if defined(__AVX512F__) && !defined(OE_SB_SCALAR)
/* For a single row AVX2 is faster than AVX-512, by up to a quarter where rows are long. Hidden, so that a build which
 * leaves them out fails as it is linked, and not as it is imported. */
extern const oe_sb_kernel oe_sb_f16_avx2 __attribute__((visibility("hidden")));
extern const oe_sb_kernel oe_sb_bf16_avx2 __attribute__((visibility("hidden")));

INLINE void multiply_row(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
    (type == OE_SB_F16 ? oe_sb_f16_avx2 : oe_sb_bf16_avx2).multiply(p, first, last);
}
#else
INLINE void multiply_row(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
    if (p->m < SINGLE_WEIGHTS) {
        for (; first < last; first++) {
            multiply_tile(type, 1, 1, p, (place){0, first, 0, 0});
        }
        return;
    }
    const size_t step = SINGLE_WEIGHTS * p->row_bytes, ahead = (NEAR_ENOUGH + step - 1) / step * step;
    for (; first < last; first += SINGLE_WEIGHTS) {
        const int64_t from = first + SINGLE_WEIGHTS <= p->m ? first : p->m - SINGLE_WEIGHTS;
        multiply_tile(type, SINGLE_WEIGHTS, 1, p, (place){0, from, first - from, ahead});
    }
}
#endif

INLINE void multiply(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
    if (p->rows == 1) {
        multiply_row(type, p, first, last);
    } else if (p->rows >= MANY) {
        multiply_many(type, p, first, last);
    } else {
        multiply_several(type, p, first, last);
    }
}

static void multiply_f16(const oe_sb_product *p, int64_t first, int64_t last) { multiply(OE_SB_F16, p, first, last); }
static void multiply_bf16(const oe_sb_product *p, int64_t first, int64_t last) { multiply(OE_SB_BF16, p, first, last); }

/* No multiply_single: only kernels that read activations in another order for a single row need one. */
#define DEFINE(type)                                                                                                   \
    const oe_sb_kernel OE_SB_KERNEL(type) = {                                                                          \
        OE_LANES, OE_LANES * sizeof(float), OE_SB_ACTS(copy16), &OE_SB_ACTS(fused), multiply_##type, NULL, NULL}

DEFINE(f16);
DEFINE(bf16);
