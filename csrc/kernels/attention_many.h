/* Many queries and a tile of cells (attention.h): keys, transposed, and values become floats once for all queries; the
 * products are in attention_blocks.c. The bits are those of attention_few.h: each score is 16 sums over the
 * dimension, joined as lanes_sum joins them, and values are added cell by cell. Included by files that are compiled
 * once for each instruction set. */
#ifndef OE_ATTENTION_MANY_H
#define OE_ATTENTION_MANY_H

#include <stdbool.h>

#include "base/transpose16.h"
#include "kernels/attention_softmax.h"

#define MANY_DIM OE_ATTENTION_MANY_DIM

/* Cells whose scores are computed side by side, in vectors. */
#if defined(__AVX512F__)
#define SCORE_VECTORS 2
#else
#define SCORE_VECTORS 1
#endif

/* A tile of cells as floats. */
typedef struct unpacked {
    float *keys;       /* [dimension][TILE] */
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

/* The part of the tile from t->first on that any query sees; false where that is nothing. */
INLINE bool look_at(const oe_attention_piece *p, unpacked *t) {
    t->low = TILE, t->high = 0;
    for (int64_t i = 0; i < p->n_queries; i++) {
        const int64_t from = p->queries[i].first - t->first, to = p->queries[i].end - t->first;
        if (from < to && from < TILE && to > 0) {
            t->low = from < 0 ? 0 : from < t->low ? from : t->low;
            t->high = to > TILE ? TILE : to > t->high ? to : t->high;
        }
    }
    return t->low < t->high;
}

/* Whether the piece can be computed here. */
INLINE bool many_fits(const oe_attention_piece *p) {
    return p->keys.dim % OE_LANES == 0 && p->keys.dim <= MANY_DIM && p->values.dim <= MANY_DIM;
}

/* All of a piece, up to the cell `end`. */
INLINE void attend_many(const int type, const oe_attention_piece *p, int64_t end) {
    unpacked t = {.keys = p->scratch, .values = p->scratch + TILE * p->keys.dim};
    t.stride = (p->values.dim + OE_LANES - 1) / OE_LANES * OE_LANES;
    for (t.first = 0; t.first < end; t.first += TILE) {
        const int32_t *cell = p->list + (p->base + t.first);
        if (look_at(p, &t)) {
            unpack_keys(type, p, cell, &t);
            unpack_values(type, p, cell, &t);
            const int64_t left = end - t.first - TILE;
            OE_ATTEND_BLOCKS(p, &t, left < 0 ? 0 : left < TILE ? left : TILE);
        }
    }
}

#endif
