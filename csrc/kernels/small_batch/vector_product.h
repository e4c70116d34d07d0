/* The products (kernel.h) of a quantized weight type with the vectors of lanes.h. A file defines before it includes
 * this:
 *
 *      BLOCK_BYTES    size of a block of weights
 *      act_block      the type of a block of activations, oe_act256 or oe_act32
 *      add_block      INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act,
 *                     floats *out): adds the products of LANES blocks with those of the n-th row of activations, which
 *                     are act[OE_QUAD * n], to out[n], and fetches w.ahead (fetch_part) */

/* -- several rows of activations, in tiles of equal size ----------------------------------------------------------- */

enum {
    IN_256 = sizeof(act_block) == sizeof(oe_act256),
    MOST_ROWS = LANES == 16 || !IN_256 ? WIDE_TILE : TILE,
    UNEVEN = 13 /* from so many rows in blocks of 256 on, a whole WIDE_TILE is no slower (measured) */
};
_Static_assert(WIDE_TILE - UNEVEN <= OE_SB_ROWS_BEHIND, "activations lie behind the last row for a whole tile");

#define NEAR_ENOUGH 8192 /* least distance in bytes to prefetch; with 4096, Zen 5 waits for large blocks */
#define NEAR_ENOUGH_IN_L2 16384 /* with 8192, Zen 4 reads Q8_0 at three quarters of the speed (measured) */

/* How far ahead weights are fetched, in whole groups of rows. */
INLINE size_t distance(oe_sb_fetch by, size_t group) {
    const size_t least = by == OE_SB_FETCH_L2 ? NEAR_ENOUGH_IN_L2 : NEAR_ENOUGH;
    return (least + group - 1) / group * group;
}

INLINE floats total(floats s0, floats s1, floats s2, floats s3) {
    return floats_add(floats_add(s0, s1), floats_add(s2, s3));
}

/* Rows from .. from + LANES - 1 of weights with n_tile rows of activations from `row` on. Not stored are the results of
 * the first `skip` rows of weights, and those of activations behind the n-th. */
INLINE void multiply_tile(const int n_tile, const oe_sb_product *p, int64_t row, int64_t from, int skip, int64_t n) {
    const size_t group = (size_t)from * p->row_bytes, ahead = distance(p->variant.fetch, LANES * p->row_bytes);
    const act_block *act = (const act_block *)p->acts + row * OE_QUAD;
    window w = {.at = p->weights + group, .near = p->row_bytes, .far = 4 * p->row_bytes};
    floats out[OE_QUAD][MOST_ROWS];
    memset(out, 0, sizeof out);
    for (int64_t b = 0; b < p->blocks; b++, w.at += BLOCK_BYTES) {
        if (row == 0) {
            fetch_ahead(&w, p, group, b, LANES * BLOCK_BYTES, ahead);
        }
        add_block(false, n_tile, w, act + b / OE_QUAD * p->rows * OE_QUAD + b % OE_QUAD, out[b % OE_QUAD]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        store_lanes(oe_sb_out(p, row + i) + from, skip, total(out[0][i], out[1][i], out[2][i], out[3][i]));
    }
}

static void oe_multiply_any_tile(int64_t n, const oe_sb_product *p, int64_t row, int64_t from, int skip) {
    switch (n) {
    case 1: multiply_tile(1, p, row, from, skip, 1); break;
    case 2: multiply_tile(2, p, row, from, skip, 2); break;
    case 3: multiply_tile(3, p, row, from, skip, 3); break;
    case 4: multiply_tile(4, p, row, from, skip, 4); break;
    case 5: multiply_tile(5, p, row, from, skip, 5); break;
    case 6: multiply_tile(6, p, row, from, skip, 6); break;
    case 7: multiply_tile(7, p, row, from, skip, 7); break;
    default: multiply_tile(TILE, p, row, from, skip, TILE); break;
    }
}

/* So that none of 9 to 16 rows takes longer than one of 8. Of 13 to 15 it reads as many as 16. */
static void oe_multiply_wide_tile(int n, const oe_sb_product *p, int64_t row, int64_t from, int skip) {
    multiply_tile(IN_256 && n >= UNEVEN ? WIDE_TILE : n, p, row, from, skip, n);
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

/* -- few rows of activations, or one, whose fours of blocks are interleaved ---------------------------------------- */

#if defined(FOURS_IN_TWO)
#define INTERLEAVED_ROWS 8 /* for more, multiply_tile is faster (measured) */
#elif defined(WHOLE_BLOCKS)
#define INTERLEAVED_ROWS WHOLE_ROWS
#else
#define INTERLEAVED_ROWS 1
#endif
#ifndef WHOLE
#define WHOLE 0
#endif
#ifdef ROWS_OF_FOURS
#define IN_FOURS_FROM 1 /* rows of activations */
#else
#define IN_FOURS_FROM 2
#endif
#define MULTIPLY_INTERLEAVED oe_multiply_interleaved
/* Measured with AVX-512 and AVX2. With WHOLE, missing blocks take no time. */
#define MOST_MISSING (WHOLE ? 75 : LANES == 16 ? 20 : 10)

#define FEW_ROWS (LANES / OE_QUAD) /* of weights at a time */
#define STREAMS 2

/* Adds the products of the blocks that FEW_ROWS rows have after their last whole four, 1 to 3. They are read where
 * they lie, with what follows them, whose products are not taken; copied are those of the last rows, as nothing may
 * follow. */
static void oe_add_rest(int n_tile, const oe_sb_product *p, window w, const act_block *act, floats *out) {
    uint8_t rest[LANES * BLOCK_BYTES];
    floats sum[INTERLEAVED_ROWS];
    const size_t left = (size_t)(p->blocks % OE_QUAD);
    const size_t behind = (size_t)(p->weights + (size_t)(p->m - 1) * p->row_bytes + p->blocks * BLOCK_BYTES - w.at);
    if (behind < (FEW_ROWS - 1) * p->row_bytes + OE_QUAD * BLOCK_BYTES) {
        memset(rest, 0, sizeof rest);
        for (size_t i = 0; i < FEW_ROWS; i++) {
            memcpy(rest + i * OE_QUAD * BLOCK_BYTES, w.at + i * w.far, left * BLOCK_BYTES);
        }
        w.at = rest;
        w.far = OE_QUAD * BLOCK_BYTES;
    }
    w.blocks = (int)left;
    memcpy(sum, out, (size_t)n_tile * sizeof *sum);
    if (INTERLEAVED_ROWS <= 2) { /* known, so that sums stay in registers */
        n_tile == 1 ? add_block(true, 1, w, act, sum) : add_block(true, INTERLEAVED_ROWS, w, act, sum);
    } else {
        add_block(true, n_tile, w, act, sum);
    }
    for (int n = 0; n < n_tile; n++) {
        out[n] = floats_of_first((int)left, sum[n], out[n]);
    }
}

/* n_tile rows of activations with FEW_ROWS rows of weights from each of `streams` places on. The sums s0 to s3 of a row
 * of weights are in its 4 lanes. Results of the first `skip` rows of weights are not stored. */
INLINE void multiply_rows(const int n_tile, const int streams, const oe_sb_product *p, const int64_t *from, int skip) {
    const size_t ahead = distance(p->variant.fetch, FEW_ROWS * p->row_bytes);
    const act_block *act = p->acts;
    floats out[STREAMS][INTERLEAVED_ROWS], last[INTERLEAVED_ROWS];
    window w[STREAMS];
    size_t group[STREAMS];
#pragma GCC unroll 2
    for (int s = 0; s < streams; s++) {
        group[s] = (size_t)from[s] * p->row_bytes;
        w[s] = (window){.at = p->weights + group[s], .near = BLOCK_BYTES, .far = p->row_bytes};
        w[s].in_fours = n_tile >= IN_FOURS_FROM;
        w[s].blocks = OE_QUAD;
#pragma GCC unroll 8
        for (int n = 0; n < n_tile; n++) {
            out[s][n] = floats_set(0);
        }
    }
    for (int64_t quad = 0; quad < p->blocks / OE_QUAD; quad++, act += OE_QUAD * n_tile) {
#pragma GCC unroll 2
        for (int s = 0; s < streams; s++) {
            fetch_ahead(&w[s], p, group[s], quad, LANES * BLOCK_BYTES, ahead);
            add_block(true, n_tile, w[s], act, out[s]);
            w[s].at += OE_QUAD * BLOCK_BYTES;
        }
    }
#pragma GCC unroll 2
    for (int s = 0; s < streams; s++) {
        if (p->blocks % OE_QUAD) {
            fetch_ahead(&w[s], p, group[s], p->blocks / OE_QUAD, LANES * BLOCK_BYTES, ahead);
            memcpy(last, out[s], sizeof last); /* a copy, so that those in the loop stay in registers */
            oe_add_rest(n_tile, p, w[s], act, last);
            memcpy(out[s], last, sizeof last);
        }
#pragma GCC unroll 8
        for (int n = 0; n < n_tile; n++) {
            store_sums_of_4(oe_sb_out(p, n) + from[s], skip, out[s][n]);
        }
    }
}

INLINE void multiply_few(const int n_tile, const oe_sb_product *p, int64_t first, int64_t last) {
    for (; first < last; first += FEW_ROWS) {
        const int64_t from = first + FEW_ROWS <= p->m ? first : p->m - FEW_ROWS;
        multiply_rows(n_tile, 1, p, &from, (int)(first - from));
    }
}

static void oe_multiply_interleaved(const oe_sb_product *p, int64_t first, int64_t last) {
    switch (p->rows) {
#if INTERLEAVED_ROWS > 1
    case 2: multiply_few(2, p, first, last); return;
#endif
#if INTERLEAVED_ROWS > 2
    case 3: multiply_few(3, p, first, last); return;
    case 4: multiply_few(4, p, first, last); return;
    case 5: multiply_few(5, p, first, last); return;
    case 6: multiply_few(6, p, first, last); return;
    case 7: multiply_few(7, p, first, last); return;
    case 8: multiply_few(8, p, first, last); return;
#endif
    default: break;
    }
    if (p->variant.two_streams) {
        const int64_t half = (last - first) / (STREAMS * FEW_ROWS) * FEW_ROWS;
        for (const int64_t end = first + half; first < end; first += FEW_ROWS) {
            multiply_rows(1, STREAMS, p, (const int64_t[]){first, first + half}, 0);
        }
        first += half;
    }
    multiply_few(1, p, first, last);
}
