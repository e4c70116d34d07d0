/* Products of weights of 16 bits as floats, with the vectors of base/simd16.h. A file includes simd16.h and defines
 * before it includes this:
 *
 *      STEP           numbers multiplied at once, 16 or 32; their activations take ACT_BYTES
 *      TILE, TILE_WEIGHTS   rows of activations and of weights whose sums fit the registers
 *      PACKED_FROM    rows from which on packing weights costs less than it saves (measured)
 *      SINGLE_BY      the kernel for a single row, where it is another one
 *      numbers        the type of STEP numbers
 *      read_weights   INLINE numbers read_weights(const uint8_t *x, const int n): n of STEP numbers, and zeros
 *      read_acts      INLINE numbers read_acts(const uint8_t *x)
 *      add_products   INLINE lanes add_products(numbers weights, numbers acts, lanes sum)
 *      HOLD           keeps activations in a register: GCC loads them again for each product where it has few to spare
 *
 * Each of 16 lanes adds up its products in order, with one rounding each, and the lanes are joined at the end: results
 * are the same bits with every instruction set, and whatever the other rows are. (Which NaN a NaN is may differ.) */
#include "kernels/small_batch/activations.h"
#include "threads/thread_scratch.h"

#define BYTES (2 * OE_LANES) /* of a block of weights */
#define ACT_BYTES 64
#define STEP_BLOCKS (STEP / OE_LANES)
#define QUAD_BYTES (OE_QUAD / STEP_BLOCKS * ACT_BYTES) /* of the activations of a quad */
#define SINGLE_WEIGHTS 4 /* rows of weights at a time for a single row of activations */
#define NEAR_ENOUGH 4096 /* least distance in bytes to prefetch: nearer arrives too late */

#ifndef HOLD
#define HOLD(x)
#endif

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
        numbers y = read_acts(act + j * ACT_BYTES);
        HOLD(y);
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

/* Where rows of weights lie: the first number of the first, and bytes to the next row and to the next quad. */
typedef struct weights_at {
    const uint8_t *first;
    size_t row, quad;
} weights_at;

INLINE weights_at weights_of(const oe_sb_product *p, int64_t from) {
    return (weights_at){p->weights + (size_t)from * p->row_bytes, p->row_bytes, OE_QUAD * BYTES};
}

/* Where rows of activations lie: those of a step are side by side. */
typedef struct acts_at {
    const uint8_t *first;
    size_t step;
} acts_at;

INLINE size_t quads_of(const oe_sb_product *p) { return (size_t)(p->blocks + OE_QUAD - 1) / OE_QUAD; }

INLINE acts_at acts_of(const oe_sb_product *p, oe_act_tile tile, int64_t row) {
    const uint8_t *const first = (const uint8_t *)p->acts + (size_t)tile.first * quads_of(p) * QUAD_BYTES;
    return (acts_at){first + (row - tile.first) * ACT_BYTES, (size_t)tile.rows * ACT_BYTES};
}

/* What is fetched into the L2 cache meanwhile, so many bytes with each quad. */
typedef struct later {
    const uint8_t *at, *end;
    size_t step;
} later;

INLINE void fetch_later(later *of) {
    const uint8_t *const to = (size_t)(of->end - of->at) < of->step ? of->end : of->at + of->step;
    for (; of->at < to; of->at += 64) {
        __builtin_prefetch(of->at, 0, 2);
    }
}

/* Adds the products of all blocks. */
INLINE void add_blocks(const int n_weights, const int n, const oe_sb_product *p, place at, weights_at weights,
                       acts_at acts, later *fetched, lanes (*sum)[TILE]) {
    const size_t group = (size_t)at.from * p->row_bytes, share = (size_t)n_weights * BYTES;
    const uint8_t *act = acts.first, *w = weights.first;
    int64_t b = 0;
    for (; b + OE_QUAD <= p->blocks; b += OE_QUAD, w += weights.quad) {
        prefetch(p, group, (size_t)b * share, OE_QUAD * share, at.ahead);
        fetch_later(fetched);
#pragma GCC unroll 4
        for (int i = 0; i < QUAD_BYTES / ACT_BYTES; i++, act += acts.step) {
            add_step(STEP, n_weights, n, w + i * 2 * STEP, weights.row, act, sum);
        }
    }
    for (; b + STEP_BLOCKS <= p->blocks; b += STEP_BLOCKS, w += 2 * STEP, act += acts.step) {
        add_step(STEP, n_weights, n, w, weights.row, act, sum);
    }
    if (b < p->blocks) {
        add_step(OE_LANES, n_weights, n, w, weights.row, act, sum);
    }
}

INLINE void multiply_tile(const int n_weights, const int n, const oe_sb_product *p, place at, weights_at weights,
                          acts_at acts, later *fetched) {
    lanes sum[SINGLE_WEIGHTS][TILE];
#pragma GCC unroll 4
    for (int i = 0; i < n_weights; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            sum[i][j] = lanes_set(0);
        }
    }
    add_blocks(n_weights, n, p, at, weights, acts, fetched, sum);
    if (n_weights == TILE_WEIGHTS && n == TILE) {
        store_tile(p, at, sum);
    } else {
        store(n_weights, n, p, at, sum);
    }
}

/* A case of multiply_any_tile; nothing where a tile has fewer rows. */
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        if ((n) <= TILE) {                                                                                             \
            multiply_tile(TILE_WEIGHTS, (n) <= TILE ? (n) : 1, p, at, weights, acts, fetched);                         \
        }                                                                                                              \
        break

INLINE void multiply_any_tile(const int64_t n, const oe_sb_product *p, place at, weights_at weights, acts_at acts,
                              later *fetched) {
    switch (n) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
    }
}

/* TILE_WEIGHTS rows of weights with those of a tile of activations. */
INLINE void multiply_group(const oe_sb_product *p, oe_act_tile tile, place at, weights_at weights, later *fetched) {
    const int64_t end = tile.first + tile.rows;
    for (at.row = tile.first; at.row < end; at.ahead = 0) {
        const int64_t n = oe_share_of(end - at.row, TILE);
        multiply_any_tile(n, p, at, weights, acts_of(p, tile, at.row), fetched);
        at.row += n;
    }
}

NOINLINE void oe_multiply_in_place(const oe_sb_product *p, oe_act_tile tile, place at, later *fetched) {
    multiply_group(p, tile, at, weights_of(p, at.from), fetched);
}

/* -- one tile of activations --------------------------------------------------------------------------------------- */

INLINE void multiply_one_tile(const oe_sb_product *p, int64_t first, int64_t last) {
    later none = {NULL, NULL, 0};
    for (; first < last; first += TILE_WEIGHTS) {
        place at = place_of(p, 0, first);
        at.ahead = TILE_WEIGHTS * p->row_bytes;
        oe_multiply_in_place(p, oe_act_tile_of(p->rows, 0), at, &none);
    }
}

/* -- several ------------------------------------------------------------------------------------------------------- */

#define PLACED_BYTES 250000 /* of weights that stay in the L2 cache for all activations, while as many are fetched */
#define PACKED_BYTES 400000 /* the same, of packed ones (both measured) */
#define PACKED_QUAD (TILE_WEIGHTS * OE_QUAD * BYTES)

/* Rows of weights that stay in the L2 cache. */
typedef struct piece {
    int64_t first, end;
} piece;

/* The next of the fewest pieces of equal size. */
INLINE piece piece_of(const oe_sb_product *p, int64_t first, int64_t last, int64_t bytes) {
    const int64_t fit = bytes / (int64_t)(quads_of(p) * OE_QUAD * BYTES), left = last - first;
    const int64_t rows = left > 0 ? oe_share_of(left, fit < TILE_WEIGHTS ? TILE_WEIGHTS : fit) : 0;
    const int64_t whole = (rows + TILE_WEIGHTS - 1) / TILE_WEIGHTS * TILE_WEIGHTS;
    return (piece){first, left < whole ? last : first + whole};
}

/* Each tile of a piece fetches its share of the next one. */
INLINE later later_of(const oe_sb_product *p, piece of, piece next, oe_act_tile tile, int64_t begun) {
    const int64_t here = of.end - of.first, all = here * p->rows;
    const int64_t done = tile.first * here + begun * tile.rows, after = done + TILE_WEIGHTS * tile.rows;
    const int64_t bytes = p->variant.fetch == OE_SB_FETCH_NONE ? 0 : (next.end - next.first) * (int64_t)p->row_bytes;
    const int64_t from = bytes * done / all, to = bytes * (after < all ? after : all) / all;
    const uint8_t *const first = p->weights + (size_t)next.first * p->row_bytes;
    return (later){first + from, first + to, ((size_t)(to - from) + quads_of(p) - 1) / quads_of(p)};
}

/* Copies TILE_WEIGHTS rows of weights side by side. */
INLINE void pack(const oe_sb_product *p, place at, uint8_t *to) {
    const size_t quad = OE_QUAD * BYTES, bytes = (size_t)p->blocks * BYTES;
    const uint8_t *from = p->weights + (size_t)at.from * p->row_bytes;
    for (size_t done = 0; done < bytes; done += quad) {
        prefetch(p, (size_t)at.from * p->row_bytes, done * TILE_WEIGHTS, PACKED_QUAD, at.ahead);
        for (int i = 0; i < TILE_WEIGHTS; i++, to += quad) {
            const uint8_t *const row = from + (size_t)i * p->row_bytes + done;
            if (bytes - done < quad) {
                memcpy(to, row, bytes - done);
            } else {
                memcpy(to, row, quad);
            }
        }
    }
}

NOINLINE void oe_multiply_packed(const oe_sb_product *p, oe_act_tile tile, place at, const uint8_t *packed,
                                 later *fetched) {
    at.ahead = 0;
    multiply_group(p, tile, at, (weights_at){packed, OE_QUAD * BYTES, PACKED_QUAD}, fetched);
}

/* A piece with a tile of activations. `ahead` is for the first tile of the first piece, which nothing has fetched. */
INLINE void multiply_piece(const oe_sb_product *p, piece of, piece next, oe_act_tile tile, size_t ahead,
                           uint8_t *packed) {
    for (int64_t first = of.first; first < of.end; first += TILE_WEIGHTS) {
        place at = place_of(p, tile.first, first);
        later fetched = later_of(p, of, next, tile, first - of.first);
        at.ahead = ahead;
        if (!packed) {
            oe_multiply_in_place(p, tile, at, &fetched);
            continue;
        }
        if (tile.first == 0) {
            pack(p, at, packed);
        }
        oe_multiply_packed(p, tile, at, packed, &fetched);
        packed += quads_of(p) * PACKED_QUAD;
    }
}

/* Packed weights need memory; where there is none, they are read in place. */
INLINE void multiply_several(const oe_sb_product *p, int64_t first, int64_t last) {
    const int64_t bytes = p->rows < PACKED_FROM ? PLACED_BYTES : PACKED_BYTES;
    size_t ahead = TILE_WEIGHTS * p->row_bytes;
    piece of = piece_of(p, first, last, bytes), next;
    const size_t groups = (size_t)(of.end - of.first + TILE_WEIGHTS - 1) / TILE_WEIGHTS;
    uint8_t *const packed = p->rows < PACKED_FROM ? NULL : oe_thread_scratch(groups * quads_of(p) * PACKED_QUAD);
    for (; of.first < last; of = next, ahead = 0) {
        next = piece_of(p, of.end, last, bytes);
        for (int64_t row = 0; row < p->rows;) {
            const oe_act_tile tile = oe_act_tile_of(p->rows, row);
            multiply_piece(p, of, next, tile, row == 0 ? ahead : 0, packed);
            row += tile.rows;
        }
    }
}

/* -- any number of rows -------------------------------------------------------------------------------------------- */

#ifdef SINGLE_BY
/* Hidden, so that a build which leaves it out fails as it is linked, and not as it is imported. */
extern const oe_sb_kernel SINGLE_BY __attribute__((visibility("hidden")));

INLINE void multiply_row(const oe_sb_product *p, int64_t first, int64_t last) { SINGLE_BY.multiply(p, first, last); }
#else
INLINE void multiply_row(const oe_sb_product *p, int64_t first, int64_t last) {
    const acts_at acts = acts_of(p, oe_act_tile_of(1, 0), 0);
    later none = {NULL, NULL, 0};
    if (p->m < SINGLE_WEIGHTS) {
        for (; first < last; first++) {
            multiply_tile(1, 1, p, (place){0, first, 0, 0}, weights_of(p, first), acts, &none);
        }
        return;
    }
    const size_t step = SINGLE_WEIGHTS * p->row_bytes, ahead = (NEAR_ENOUGH + step - 1) / step * step;
    for (; first < last; first += SINGLE_WEIGHTS) {
        const int64_t from = first + SINGLE_WEIGHTS <= p->m ? first : p->m - SINGLE_WEIGHTS;
        multiply_tile(SINGLE_WEIGHTS, 1, p, (place){0, from, first - from, ahead}, weights_of(p, from), acts, &none);
    }
}
#endif

NOINLINE void oe_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    if (p->rows == 1) {
        multiply_row(p, first, last);
    } else if (p->rows <= OE_ACT_TILE) {
        multiply_one_tile(p, first, last);
    } else {
        multiply_several(p, first, last);
    }
}
