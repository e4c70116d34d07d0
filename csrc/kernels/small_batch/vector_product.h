/* The products (kernel.h) of a quantized weight type with the vectors of lanes.h. A file defines before it includes
 * this:
 *
 *      BLOCK_BYTES    size of a block of weights
 *      act_block      the type of a block of activations, oe_act256 or oe_act32
 *      add_block      INLINE void add_block(const bool single, const int n_tile, window w, const act_block *act,
 *                     floats *out): adds the products of LANES blocks with those of the n-th row of activations, which
 *                     are act[OE_QUAD * n], to out[n], and fetches w.ahead (fetch_part) */

/* -- several rows of activations, in tiles of equal size ----------------------------------------------------------- */

enum { MOST_ROWS = sizeof(act_block) == sizeof(oe_act32) ? WIDE_TILE : TILE };

INLINE floats total(floats s0, floats s1, floats s2, floats s3) {
    return floats_add(floats_add(s0, s1), floats_add(s2, s3));
}

/* Rows from .. from + LANES - 1 of weights with n_tile rows of activations from `row` on; results of the first `skip`
 * rows of weights are not stored. */
INLINE void multiply_tile(const int n_tile, const oe_sb_product *p, int64_t row, int64_t from, int skip) {
    const size_t group = (size_t)from * p->row_bytes;
    const act_block *act = (const act_block *)p->acts + row * OE_QUAD;
    window w = {p->weights + group, p->row_bytes, 4 * p->row_bytes, NULL, OE_SB_FETCH_NONE};
    floats out[OE_QUAD][MOST_ROWS];
    memset(out, 0, sizeof out);
    for (int64_t b = 0; b < p->blocks; b++, w.at += BLOCK_BYTES) {
        if (row == 0) {
            fetch_ahead(&w, p, group, b, LANES * BLOCK_BYTES, LANES * p->row_bytes);
        }
        add_block(false, n_tile, w, act + b / OE_QUAD * p->rows * OE_QUAD + b % OE_QUAD, out[b % OE_QUAD]);
    }
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        store_lanes(oe_sb_out(p, row + n) + from, skip, total(out[0][n], out[1][n], out[2][n], out[3][n]));
    }
}

static void oe_multiply_any_tile(int64_t n, const oe_sb_product *p, int64_t row, int64_t from, int skip) {
    switch (n) {
    case 1: multiply_tile(1, p, row, from, skip); break;
    case 2: multiply_tile(2, p, row, from, skip); break;
    case 3: multiply_tile(3, p, row, from, skip); break;
    case 4: multiply_tile(4, p, row, from, skip); break;
    case 5: multiply_tile(5, p, row, from, skip); break;
    case 6: multiply_tile(6, p, row, from, skip); break;
    case 7: multiply_tile(7, p, row, from, skip); break;
    default: multiply_tile(TILE, p, row, from, skip); break;
    }
}

/* So that a weight is unpacked once for them, and none of 9 to 16 rows takes longer than one of 8. */
static void oe_multiply_wide_tile(int n, const oe_sb_product *p, int64_t row, int64_t from, int skip) {
    multiply_tile(n, p, row, from, skip);
}

#ifdef PANELS
#include "kernels/small_batch/panel_product.h"
#endif

/* The last LANES rows of weights may overlap rows before them, whose results are stored already. */
static void oe_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
#ifdef PANELS
    if (p->rows >= PANELS_FROM && oe_multiply_with_panels(p, first, last)) {
        return;
    }
#endif
    for (; first < last; first += LANES) {
        const int64_t from = first + LANES <= p->m ? first : p->m - LANES;
        for (int64_t row = 0, left = p->rows; left > 0;) {
            const int64_t tiles = (left + MOST_ROWS - 1) / MOST_ROWS;
            const int64_t n = (left + tiles - 1) / tiles;
            if (MOST_ROWS > TILE && n > TILE) {
                oe_multiply_wide_tile((int)n, p, row, from, (int)(first - from));
            } else {
                oe_multiply_any_tile(n, p, row, from, (int)(first - from));
            }
            row += n;
            left -= n;
        }
    }
}

/* -- a single row of activations ----------------------------------------------------------------------------------- */

#define SINGLE_ROWS (LANES / OE_QUAD) /* of weights at a time */
#define STREAMS 2
#define NEAR_ENOUGH 8192 /* least distance in bytes to prefetch; with 4096, Zen 5 waits for large blocks */

/* Adds the products of the blocks that SINGLE_ROWS rows have after their last whole four, 1 to 3. They are read where
 * they lie, with what follows them, whose products are not taken; copied are those of the last rows, as nothing may
 * follow. */
INLINE void add_rest(const oe_sb_product *p, window w, const act_block *act, floats *out) {
    uint8_t rest[LANES * BLOCK_BYTES];
    const size_t left = (size_t)(p->blocks % OE_QUAD);
    const size_t behind = (size_t)(p->weights + (size_t)p->m * p->row_bytes - w.at);
    if (behind < (SINGLE_ROWS - 1) * p->row_bytes + OE_QUAD * BLOCK_BYTES) {
        memset(rest, 0, sizeof rest);
        for (size_t i = 0; i < SINGLE_ROWS; i++) {
            memcpy(rest + i * OE_QUAD * BLOCK_BYTES, w.at + i * w.far, left * BLOCK_BYTES);
        }
        w.at = rest;
        w.far = OE_QUAD * BLOCK_BYTES;
    }
    floats sum = *out;
    add_block(true, 1, w, act, &sum);
    *out = floats_of_first((int)left, sum, *out);
}

/* The sums s0 to s3 of each of SINGLE_ROWS rows, in its 4 lanes, for rows from each of `streams` places on. */
INLINE void multiply_rows(const int streams, const oe_sb_product *p, const int64_t *from, size_t ahead, floats *out) {
    const act_block *act = p->acts;
    window w[STREAMS];
    size_t group[STREAMS];
#pragma GCC unroll 2
    for (int s = 0; s < streams; s++) {
        group[s] = (size_t)from[s] * p->row_bytes;
        w[s] = (window){p->weights + group[s], BLOCK_BYTES, p->row_bytes, NULL, OE_SB_FETCH_NONE};
        out[s] = floats_set(0);
    }
    for (int64_t quad = 0; quad < p->blocks / OE_QUAD; quad++, act += OE_QUAD) {
#pragma GCC unroll 2
        for (int s = 0; s < streams; s++) {
            fetch_ahead(&w[s], p, group[s], quad, LANES * BLOCK_BYTES, ahead);
            add_block(true, 1, w[s], act, out + s);
            w[s].at += OE_QUAD * BLOCK_BYTES;
        }
    }
    for (int s = 0; s < streams && p->blocks % OE_QUAD; s++) {
        fetch_ahead(&w[s], p, group[s], p->blocks / OE_QUAD, LANES * BLOCK_BYTES, ahead);
        add_rest(p, w[s], act, out + s);
    }
}

static void oe_multiply_single(const oe_sb_product *p, int64_t first, int64_t last) {
    const size_t step = SINGLE_ROWS * p->row_bytes, ahead = (NEAR_ENOUGH + step - 1) / step * step;
    floats out[STREAMS];
    if (p->variant.two_streams) {
        const int64_t half = (last - first) / (STREAMS * SINGLE_ROWS) * SINGLE_ROWS;
        for (const int64_t end = first + half; first < end; first += SINGLE_ROWS) {
            multiply_rows(STREAMS, p, (const int64_t[]){first, first + half}, ahead, out);
            store_sums_of_4(oe_sb_out(p, 0) + first, 0, out[0]);
            store_sums_of_4(oe_sb_out(p, 0) + first + half, 0, out[1]);
        }
        first += half;
    }
    for (; first < last; first += SINGLE_ROWS) {
        const int64_t from = first + SINGLE_ROWS <= p->m ? first : p->m - SINGLE_ROWS;
        multiply_rows(1, p, &from, ahead, out);
        store_sums_of_4(oe_sb_out(p, 0) + from, (int)(first - from), out[0]);
    }
}

#define MULTIPLY_SINGLE oe_multiply_single
