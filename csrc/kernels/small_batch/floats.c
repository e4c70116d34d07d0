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

INLINE void multiply_tile(const oe_sb_type type, const int n_weights, const int n, const oe_sb_product *p, place at) {
    const size_t group = (size_t)at.from * p->row_bytes, share = (size_t)n_weights * BYTES;
    const float *act = (const float *)p->acts + at.row * OE_QUAD * OE_LANES;
    const uint8_t *w = p->weights + group;
    lanes sum[SINGLE_WEIGHTS][TILE];
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            sum[i][j] = lanes_set(0);
        }
    }
    int64_t b = 0;
    for (; b + OE_QUAD <= p->blocks; b += OE_QUAD, act += p->rows * OE_QUAD * OE_LANES) {
        prefetch(p, group, (size_t)b * share, OE_QUAD * share, at.ahead);
#pragma GCC unroll 4
        for (int i = 0; i < OE_QUAD; i++, w += BYTES) {
            add_block(type, n_weights, n, w, p->row_bytes, act + i * OE_LANES, sum);
        }
    }
    for (; b < p->blocks; b++, w += BYTES, act += OE_LANES) {
        add_block(type, n_weights, n, w, p->row_bytes, act, sum);
    }
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

/* All rows of activations in tiles of equal size. */
INLINE void multiply_several(const oe_sb_type type, const oe_sb_product *p, int64_t first, int64_t last) {
    for (; first < last; first += TILE_WEIGHTS) {
        const int64_t from = first + TILE_WEIGHTS <= p->m ? first : p->m - TILE_WEIGHTS;
        place at = {0, from, first - from, TILE_WEIGHTS * p->row_bytes};
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
