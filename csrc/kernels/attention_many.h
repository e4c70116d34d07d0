/* Many queries and a tile of cells (attention.h): keys, transposed, become whole numbers once for all queries (those in
 * F32 stay floats), and values floats; the products are in attention_blocks.c. The bits are those of attention_few.h: a
 * score of floats is 16 sums over the dimension, joined as lanes_sum joins them, and values are added cell by cell.
 * Included by files that are compiled once for each instruction set. */
#ifndef OE_ATTENTION_MANY_H
#define OE_ATTENTION_MANY_H

#include "base/transpose16.h"
#include "kernels/attention_rounded.h"

#define MANY_DIM OE_ATTENTION_MANY_DIM

/* Cells whose scores are computed side by side, in vectors. */
#if defined(__AVX512F__)
#define SCORE_VECTORS 2
#else
#define SCORE_VECTORS 1
#endif

/* A tile of cells: values as floats, keys as floats or rounded. */
typedef struct unpacked {
    const rounded *rounded; /* NULL: keys are floats */
    float *keys;       /* [dimension][TILE], or pairs of rounded numbers [r->stride / 2][TILE] */
    float *values;     /* [TILE][stride] */
    int64_t stride;    /* the values' dimension, rounded up to whole vectors */
    int64_t first;     /* the tile's first cell, counted in the piece */
    int64_t low, high; /* cells that any query sees */
} unpacked;

/* Attends from all queries of the piece to a tile, and fetches the first `n_next` cells behind it:
 * attention_blocks.c. */
void OE_ATTEND_BLOCKS(const oe_attention_piece *p, const unpacked *t, int64_t n_next);

/* -- unpacking ----------------------------------------------------------------------------------------------------- */

INLINE void unpack_keys(const int type, const oe_attention_piece *p, const int32_t *cell, unpacked *to) {
    const int64_t width = SCORE_VECTORS * OE_LANES, begin = to->low / width * width;
    for (int64_t at = begin; at < (to->high + width - 1) / width * width; at += OE_LANES) {
        const char *key[OE_LANES];
        for (int i = 0; i < OE_LANES; i++) {
            /* Padding repeats the nearest cell; unused. */
            const int64_t c = at + i < to->low ? to->low : at + i < to->high ? at + i : to->high - 1;
            key[i] = cell_of(&p->keys, cell[c]);
        }
        for (int64_t d = 0; d < p->keys.dim; d += OE_LANES) {
            lanes x[OE_LANES];
#pragma GCC unroll 16
            for (int i = 0; i < OE_LANES; i++) {
                x[i] = load_whole(type, key[i], d);
            }
            lanes_transpose(x, to->keys + d * TILE + at, TILE);
        }
    }
}

/* As unpack_keys; a pair of numbers takes the place of a float. */
INLINE void pair_keys(const int type, const oe_attention_piece *p, const int32_t *cell, unpacked *to) {
    const rounded *r = to->rounded;
    round_keys(type, p, cell, to->low, to->high, r);
    for (int64_t at = to->low / OE_LANES * OE_LANES; at < to->high; at += OE_LANES) {
        for (int64_t d = 0; d < r->stride; d += OE_PAIRED) {
            lanes x[OE_LANES];
#pragma GCC unroll 16
            for (int i = 0; i < OE_LANES; i++) {
                x[i] = pairs_as_lanes(pairs_load(r->keys + (at + i) * r->stride + d));
            }
            lanes_transpose(x, to->keys + d / 2 * TILE + at, TILE);
        }
    }
}

INLINE void unpack_values(const int type, const oe_attention_piece *p, const int32_t *cell, unpacked *to) {
    const int64_t dim = p->values.dim, whole = dim / OE_LANES * OE_LANES;
    for (int64_t c = to->low; c < to->high; c++) {
        const char *value = cell_of(&p->values, cell[c]);
        float *at = to->values + c * to->stride;
        for (int64_t d = 0; d < whole; d += OE_LANES) {
            lanes_store(at + d, load_whole(type, value, d));
        }
        if (whole < dim) {
            lanes_store(at + whole, load(type, value, whole, dim - whole));
        }
    }
}

/* -- all queries --------------------------------------------------------------------------------------------------- */

/* Whether the piece can be computed here. */
INLINE bool many_fits(const oe_attention_piece *p) {
    return p->keys.dim % OE_LANES == 0 && p->keys.dim <= MANY_DIM && p->values.dim <= MANY_DIM;
}

/* All of a piece, up to the cell `end`. */
INLINE void attend_many(const int type, const oe_attention_piece *p, const rounded *r, int64_t end) {
    unpacked t = {.rounded = is_rounded(type) ? r : NULL, .keys = r->floats + OE_LANES * r->stride};
    t.values = t.keys + TILE * r->stride;
    t.stride = (p->values.dim + OE_LANES - 1) / OE_LANES * OE_LANES;
    for (t.first = 0; t.first < end; t.first += TILE) {
        const int32_t *cell = p->list + (p->base + t.first);
        if (look_at(p, t.first, &t.low, &t.high)) {
            if (is_rounded(type)) {
                pair_keys(type, p, cell, &t);
            } else {
                unpack_keys(type, p, cell, &t);
            }
            unpack_values(type, p, cell, &t);
            const int64_t left = end - t.first - TILE;
            OE_ATTEND_BLOCKS(p, &t, left < 0 ? 0 : left < TILE ? left : TILE);
        }
    }
}

#endif
