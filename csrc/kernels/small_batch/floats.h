/* Products of weights of 16 bits as floats, with the vectors of base/simd16.h. A file includes simd16.h and defines
 * before it includes this:
 *
 *      STEP           numbers multiplied at once, 16 or 32; their activations take ACT_BYTES
 *      TILE, TILE_WEIGHTS   rows of activations and of weights whose sums fit the registers
 *      MANY           rows from which on activations are read too often from beyond the L1 cache (measured)
 *      SINGLE_BY      the kernel for a single row, where it is another one
 *      numbers        the type of STEP numbers
 *      read_weights   INLINE numbers read_weights(const uint8_t *x, const int n): n of STEP numbers, and zeros
 *      read_acts      INLINE numbers read_acts(const uint8_t *x)
 *      add_products   INLINE lanes add_products(numbers weights, numbers acts, lanes sum)
 *
 * Each of 16 lanes adds up its products in order, with one rounding each, and the lanes are joined at the end: results
 * are the same bits with every instruction set, and whatever the other rows are. (Which NaN a NaN is may differ.) */
#include "kernels/small_batch/activations.h"
#include "threads/chunk_counter.h"

#define BYTES (2 * OE_LANES) /* of a block of weights */
#define ACT_BYTES 64
#define STEP_BLOCKS (STEP / OE_LANES)
#define QUAD_BYTES (OE_QUAD / STEP_BLOCKS * ACT_BYTES) /* of the activations of a quad */
#define SINGLE_WEIGHTS 4 /* rows of weights at a time for a single row of activations */
#define NEAR_ENOUGH 4096 /* least distance in bytes to prefetch: nearer arrives too late */

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
    const oe_sb_fetch by = p->variant.fetch;
    const size_t at = group + done + ahead, all = (size_t)p->m * p->row_bytes;
    const size_t at_l2 = by == OE_SB_FETCH_DEEP ? at + OE_SB_DEEPER : at;
    if (!ahead || by == OE_SB_FETCH_NONE) {
        return;
    }
    if (by != OE_SB_FETCH_L2 && at + share <= all) {
#pragma GCC unroll 8
        for (size_t i = 0; i < share; i += 64) {
            __builtin_prefetch(p->weights + at + i);
        }
    }
    if ((by == OE_SB_FETCH_L2 || by == OE_SB_FETCH_DEEP) && at_l2 + share <= all) {
#pragma GCC unroll 8
        for (size_t i = 0; i < share; i += 64) {
            __builtin_prefetch(p->weights + at_l2 + i, 0, 2);
        }
    }
}

/* Adds the products of `of` numbers, STEP or less. */
INLINE void add_step(const int of, const int n_weights, const int n, const uint8_t *w, size_t row_bytes,
                     const uint8_t *act, lanes (*sum)[TILE]) {
    numbers x[SINGLE_WEIGHTS];
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
        x[i] = read_weights(w + (size_t)i * row_bytes, of);
    }
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
        const numbers y = read_acts(act + j * QUAD_BYTES);
#pragma GCC unroll 4
        for (int i = 0; i < n_weights; i++) {
            sum[i][j] = add_products(x[i], y, sum[i][j]);
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

/* The same for a whole tile of TILE rows. Where vectors are wide, 16 results come of as many additions as two would
 * alone, each of the same two numbers. */
INLINE void store_tile(const oe_sb_product *p, place at, lanes (*sum)[TILE]) {
#if defined(__AVX512F__) && TILE_WEIGHTS == 4
    if (at.skip == 0) {
#pragma GCC unroll 2
        for (int j = 0; j < TILE; j += 4) {
            lanes x[16];
            float totals[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                x[i] = sum[i % 4][j + i / 4 < TILE ? j + i / 4 : j];
            }
            lanes_sums(x, totals);
            for (int i = 0; i < 4 && j + i < TILE; i++) {
                memcpy(oe_sb_out(p, at.row + j + i) + at.from, totals + (size_t)4 * i, 4 * sizeof(float));
            }
        }
        return;
    }
#endif
    store(TILE_WEIGHTS, TILE, p, at, sum);
}

/* Quads of some rows of activations, `rows` apart. */
typedef struct act_rows {
    const uint8_t *at;
    int64_t rows;
} act_rows;

INLINE act_rows acts_of(const oe_sb_product *p, int64_t row) {
    return (act_rows){(const uint8_t *)p->acts + row * QUAD_BYTES, p->rows};
}

/* Adds the products of blocks b .. end - 1 with activations from `of` on; b is a multiple of OE_QUAD. */
INLINE void add_blocks(const int n_weights, const int n, const oe_sb_product *p, place at, act_rows of, int64_t b,
                       int64_t end, lanes (*sum)[TILE]) {
    const size_t group = (size_t)at.from * p->row_bytes, share = (size_t)n_weights * BYTES;
    const uint8_t *act = of.at;
    const uint8_t *w = p->weights + group + (size_t)b * BYTES;
    for (; b + OE_QUAD <= end; b += OE_QUAD, act += of.rows * QUAD_BYTES) {
        prefetch(p, group, (size_t)b * share, OE_QUAD * share, at.ahead);
#pragma GCC unroll 4
        for (int i = 0; i < QUAD_BYTES; i += ACT_BYTES, w += 2 * STEP) {
            add_step(STEP, n_weights, n, w, p->row_bytes, act + i, sum);
        }
    }
    for (; b + STEP_BLOCKS <= end; b += STEP_BLOCKS, w += 2 * STEP, act += ACT_BYTES) {
        add_step(STEP, n_weights, n, w, p->row_bytes, act, sum);
    }
    if (b < end) {
        add_step(OE_LANES, n_weights, n, w, p->row_bytes, act, sum);
    }
}

INLINE void multiply_tile(const int n_weights, const int n, const oe_sb_product *p, place at) {
    lanes sum[SINGLE_WEIGHTS][TILE];
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            sum[i][j] = lanes_set(0);
        }
    }
    add_blocks(n_weights, n, p, at, acts_of(p, at.row), 0, p->blocks, sum);
    store(n_weights, n, p, at, sum);
}

INLINE void multiply_any_tile(const int64_t n, const oe_sb_product *p, place at) {
    switch (n) {
    case 1: multiply_tile(TILE_WEIGHTS, 1, p, at); break;
    case 2: multiply_tile(TILE_WEIGHTS, 2, p, at); break;
    case 3: multiply_tile(TILE_WEIGHTS, 3, p, at); break;
#if TILE > 4
    case 4: multiply_tile(TILE_WEIGHTS, 4, p, at); break;
    case 5: multiply_tile(TILE_WEIGHTS, 5, p, at); break;
#if TILE > 5
    case 6: multiply_tile(TILE_WEIGHTS, 6, p, at); break;
#endif
#endif
    }
}

/* -- many rows of activations -------------------------------------------------------------------------------------- */

#define PIECE_QUADS (16 * STEP_BLOCKS) /* of TILE rows of activations, half of the L1 cache, for WEIGHT_GROUPS */
#define PIECE_BLOCKS (PIECE_QUADS * OE_QUAD)
#define WEIGHT_GROUPS 32 /* times TILE_WEIGHTS rows of weights, which stay in the L2 cache for all rows */
#define WEIGHT_BYTES (512 << 10) /* of weights for all rows, where a row is one piece: half of an L2 cache */

/* TILE rows from `row` on, side by side: quads of many rows lie so far apart that they share few lines of the cache. */
INLINE void copy_piece(const oe_sb_product *p, int64_t row, int64_t quad, int64_t quads, uint8_t *to) {
    for (int64_t i = 0; i < quads; i++) {
        const uint8_t *from = acts_of(p, row).at + (quad + i) * p->rows * QUAD_BYTES;
        memcpy(to + i * TILE * QUAD_BYTES, from, TILE * QUAD_BYTES);
    }
}

/* One of the groups with a piece of TILE rows of activations. Its sums lie in memory between two pieces. */
INLINE void add_piece(const oe_sb_product *p, place at, act_rows of, int64_t b, int64_t end, lanes (*sums)[TILE]) {
    lanes sum[SINGLE_WEIGHTS][TILE];
#pragma GCC unroll 4
    for (int i = 0; i < TILE_WEIGHTS; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < TILE; j++) {
            sum[i][j] = b ? sums[i][j] : lanes_set(0);
        }
    }
    add_blocks(TILE_WEIGHTS, TILE, p, at, of, b, end, sum);
    if (end == p->blocks) {
        store_tile(p, at, sum);
        return;
    }
#pragma GCC unroll 4
    for (int i = 0; i < TILE_WEIGHTS; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < TILE; j++) {
            sums[i][j] = sum[i][j];
        }
    }
}

/* Results first .. last - 1 for TILE rows; WEIGHT_GROUPS groups at most where there are several pieces. */
INLINE void multiply_groups(const oe_sb_product *p, int64_t row, int64_t first, int64_t last) {
    lanes sums[WEIGHT_GROUPS][TILE_WEIGHTS][TILE];
    _Alignas(OE_CACHE_LINE) uint8_t acts[PIECE_QUADS * TILE * QUAD_BYTES];
    for (int64_t b = 0; b < p->blocks; b += PIECE_BLOCKS) {
        const int64_t end = p->blocks - b < PIECE_BLOCKS ? p->blocks : b + PIECE_BLOCKS;
        copy_piece(p, row, b / OE_QUAD, (end - b + OE_QUAD - 1) / OE_QUAD, acts);
        for (int64_t g = 0; first + g * TILE_WEIGHTS < last; g++) {
            const place at = place_of(p, row, first + g * TILE_WEIGHTS);
            add_piece(p, at, (act_rows){acts, TILE}, b, end, sums[p->blocks > PIECE_BLOCKS ? g : 0]);
        }
    }
}

/* The last TILE rows may overlap those before: the same bits are stored again. */
INLINE void multiply_many(const oe_sb_product *p, int64_t first, int64_t last) {
    const int64_t near = WEIGHT_BYTES / (int64_t)p->row_bytes / TILE_WEIGHTS;
    const int64_t groups = p->blocks > PIECE_BLOCKS || near < WEIGHT_GROUPS ? WEIGHT_GROUPS : near;
    for (; first < last; first += groups * TILE_WEIGHTS) {
        const int64_t end = last - first < groups * TILE_WEIGHTS ? last : first + groups * TILE_WEIGHTS;
        for (int64_t row = 0; row < p->rows; row += TILE) {
            multiply_groups(p, row + TILE <= p->rows ? row : p->rows - TILE, first, end);
        }
    }
}

/* -- any number of rows -------------------------------------------------------------------------------------------- */

/* All rows of activations in tiles of equal size. */
INLINE void multiply_several(const oe_sb_product *p, int64_t first, int64_t last) {
    for (; first < last; first += TILE_WEIGHTS) {
        place at = place_of(p, 0, first);
        at.ahead = TILE_WEIGHTS * p->row_bytes;
        for (int64_t left = p->rows; left > 0; at.ahead = 0) {
            const int64_t tiles = (left + TILE - 1) / TILE;
            const int64_t n = (left + tiles - 1) / tiles;
            multiply_any_tile(n, p, at);
            at.row += n;
            left -= n;
        }
    }
}

#ifdef SINGLE_BY
/* Hidden, so that a build which leaves it out fails as it is linked, and not as it is imported. */
extern const oe_sb_kernel SINGLE_BY __attribute__((visibility("hidden")));

INLINE void multiply_row(const oe_sb_product *p, int64_t first, int64_t last) { SINGLE_BY.multiply(p, first, last); }
#else
INLINE void multiply_row(const oe_sb_product *p, int64_t first, int64_t last) {
    if (p->m < SINGLE_WEIGHTS) {
        for (; first < last; first++) {
            multiply_tile(1, 1, p, (place){0, first, 0, 0});
        }
        return;
    }
    const size_t step = SINGLE_WEIGHTS * p->row_bytes, ahead = (NEAR_ENOUGH + step - 1) / step * step;
    for (; first < last; first += SINGLE_WEIGHTS) {
        const int64_t from = first + SINGLE_WEIGHTS <= p->m ? first : p->m - SINGLE_WEIGHTS;
        multiply_tile(SINGLE_WEIGHTS, 1, p, (place){0, from, first - from, ahead});
    }
}
#endif

NOINLINE void oe_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    if (p->rows == 1) {
        multiply_row(p, first, last);
    } else if (p->rows >= MANY) {
        multiply_many(p, first, last);
    } else {
        multiply_several(p, first, last);
    }
}
