/* Products of F16 and BF16 weights with few rows, for the kernels of small_batch.h: the loops, which each instruction
 * set compiles with vectors of its own. Before including this, a file defines
 *
 *     vec16                          16 floats
 *     vec16 zeros16(void), floats16(const float *x), halves16(const void *x), bfloats16(const void *x);
 *     vec16 add_product16(vec16 sum, vec16 x, vec16 y)    sum + x * y, rounded once
 *     float total16(vec16 x)         16 to 8 to 4 to 2 to 1 values, adding the upper half to the lower
 *     TILE, TILE_WEIGHTS             rows of activations and of weights whose sums fit the registers
 *     KERNELS                        the name of the array that is defined here
 *     SINGLE                         if a single row of activations is left to others: the name of their array
 *
 * Activations are not rounded. Each lane adds up its products in order, 16 weights apart, so that results are the same
 * bits with every instruction set, and whatever the other rows are. (Which NaN a NaN is may differ.) */
#include "kernels/small_batch.h"

#define INLINE static inline __attribute__((always_inline))
#define LANES 16
#define BYTES 32         /* of as many weights */
#define ONE_WEIGHTS 4    /* rows of weights at a time for a single row of activations */
#define NEAR_ENOUGH 4096 /* bytes that are fetched ahead at least, or they would come too late */

INLINE vec16 weights16(const oe_sb_type type, const uint8_t *x) {
    return type == OE_SB_F16 ? halves16(x) : bfloats16(x);
}

typedef struct place { /* of a tile */
    int64_t row;  /* the first of activations */
    int64_t from; /* the first of weights */
    int64_t skip; /* rows of weights whose results are there already */
    size_t ahead; /* bytes to what should be fetched, or 0 */
} place;

/* As in the other kernels: each step fetches its share of the rows behind these, in order. */
INLINE void prefetch(const oe_sb_product *p, size_t group, size_t done, size_t share, size_t ahead) {
    const size_t at = group + done + ahead;
    if (ahead && at + share <= (size_t)p->m * p->row_bytes) {
        for (size_t i = 0; i < share; i += 64) {
            __builtin_prefetch(p->weights + at + i);
        }
    }
}

INLINE void add_block(const oe_sb_type type, const int n_weights, const int n, const uint8_t *w, size_t row_bytes,
                      const float *act, vec16 (*sum)[TILE]) {
    vec16 x[4];
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
        x[i] = weights16(type, w + (size_t)i * row_bytes);
    }
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
        const vec16 y = floats16(act + j * OE_QUAD * LANES);
#pragma GCC unroll 4
        for (int i = 0; i < n_weights; i++) {
            sum[i][j] = add_product16(sum[i][j], x[i], y);
        }
    }
}

INLINE void float_tile(const oe_sb_type type, const int n_weights, const int n, const oe_sb_product *p, place at) {
    const size_t group = (size_t)at.from * p->row_bytes, share = (size_t)n_weights * BYTES;
    const float *act = (const float *)p->acts + at.row * OE_QUAD * LANES;
    const uint8_t *w = p->weights + group;
    vec16 sum[4][TILE];
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            sum[i][j] = zeros16();
        }
    }
    int64_t b = 0;
    for (; b + OE_QUAD <= p->blocks; b += OE_QUAD, act += p->rows * OE_QUAD * LANES) {
        prefetch(p, group, (size_t)b * share, OE_QUAD * share, at.ahead);
#pragma GCC unroll 4
        for (int i = 0; i < OE_QUAD; i++, w += BYTES) {
            add_block(type, n_weights, n, w, p->row_bytes, act + i * LANES, sum);
        }
    }
    for (; b < p->blocks; b++, w += BYTES, act += LANES) {
        add_block(type, n_weights, n, w, p->row_bytes, act, sum);
    }
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            const float total = total16(sum[i][j]);
            if (i >= at.skip) {
                oe_sb_out(p, at.row + j)[at.from + i] = total;
            }
        }
    }
}

INLINE void any_tile(const oe_sb_type type, const int64_t n, const oe_sb_product *p, place at) {
    switch (n) {
    case 1: float_tile(type, TILE_WEIGHTS, 1, p, at); break;
    case 2: float_tile(type, TILE_WEIGHTS, 2, p, at); break;
    case 3: float_tile(type, TILE_WEIGHTS, 3, p, at); break;
#if TILE > 3
    case 4: float_tile(type, TILE_WEIGHTS, 4, p, at); break;
    case 5: float_tile(type, TILE_WEIGHTS, 5, p, at); break;
    case 6: float_tile(type, TILE_WEIGHTS, 6, p, at); break;
#endif
    }
}

/* All rows of activations in tiles of equal size. */
INLINE void multiply_many(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
    for (; first < last; first += TILE_WEIGHTS) {
        const int64_t from = first + TILE_WEIGHTS <= p->m ? first : p->m - TILE_WEIGHTS;
        place at = {0, from, first - from, TILE_WEIGHTS * p->row_bytes};
        for (int64_t left = p->rows; left > 0; at.ahead = 0) {
            const int64_t tiles = (left + TILE - 1) / TILE;
            const int64_t n = (left + tiles - 1) / tiles;
            any_tile(type, n, p, at);
            at.row += n;
            left -= n;
        }
    }
}

INLINE void multiply_single(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
#ifdef SINGLE
    SINGLE[type - OE_SB_F16].multiply(p, first, last);
#else
    if (p->m < ONE_WEIGHTS) {
        for (; first < last; first++) {
            float_tile(type, 1, 1, p, (place){0, first, 0, 0});
        }
        return;
    }
    const size_t step = ONE_WEIGHTS * p->row_bytes, ahead = (NEAR_ENOUGH + step - 1) / step * step;
    for (; first < last; first += ONE_WEIGHTS) {
        const int64_t from = first + ONE_WEIGHTS <= p->m ? first : p->m - ONE_WEIGHTS;
        float_tile(type, ONE_WEIGHTS, 1, p, (place){0, from, first - from, ahead});
    }
#endif
}

INLINE void multiply(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
    if (p->rows == 1) {
        multiply_single(type, p, first, last);
    } else {
        multiply_many(type, p, first, last);
    }
}

static void oe_f16_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    multiply(OE_SB_F16, p, first, last);
}

static void oe_bf16_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    multiply(OE_SB_BF16, p, first, last);
}

const oe_sb_kernel KERNELS[OE_SB_FLOATS] = {
    [OE_SB_F16 - OE_SB_F16] = {LANES, LANES * sizeof(float), oe_sb_copy16, oe_f16_multiply, NULL},
    [OE_SB_BF16 - OE_SB_F16] = {LANES, LANES * sizeof(float), oe_sb_copy16, oe_bf16_multiply, NULL},
};
