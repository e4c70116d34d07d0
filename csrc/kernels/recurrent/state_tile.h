/* Columns of a state on their way through the L1 cache: part of kernel.c. */
#ifndef OE_RECURRENT_STATE_TILE_H
#define OE_RECURRENT_STATE_TILE_H

#include "kernels/recurrent/kernel.h"
#include "kernels/recurrent/some_lanes.h"

#define MOST_VECTORS (OE_STATE_COLUMNS / OE_LANES)

/* Past the caches, where `p` is the beginning of a line: until a state is read again, a step reads all weights. */
INLINE void stream(float *p, lanes x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, x);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, x.low);
    _mm256_stream_ps(p + 8, x.high);
#else
    lanes_store(p, x);
#endif
}

/* Other threads see what was streamed before what this one writes next. */
INLINE void end_stream(void) {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

/* A call's columns, padded to whole vectors: where they are kept between two tokens, where they are read first, and
 * where they are written at last. Rows follow each other. */
typedef struct {
    const float *first;
    float *kept, *last;
} tile;

/* Whether columns are streamed to where they are written: not where they were read, which is in the caches, nor to some
 * place within a line. */
INLINE bool is_streamed(const tile *t) {
    return t->last != t->kept && t->last != t->first && ((uintptr_t)t->last & 63) == 0;
}

INLINE tile begin_tile(const oe_columns *c, float *kept, int width) {
    if (c->count == width && c->read != NULL) {
        return (tile){c->read, kept, c->write == NULL ? kept : c->write};
    }
    memset(kept, 0, (size_t)(c->rows * width) * sizeof *kept);
    for (int64_t i = 0; c->read != NULL && i < c->rows; i++) {
        memcpy(kept + i * width, c->read + i * c->count, (size_t)c->count * sizeof *kept);
    }
    return (tile){kept, kept, c->count == width && c->write != NULL ? c->write : kept};
}

INLINE void end_tile(const oe_columns *c, const float *kept, int width) {
    for (int64_t i = 0; c->count < width && c->write != NULL && i < c->rows; i++) {
        memcpy(c->write + i * c->count, kept + i * width, (size_t)c->count * sizeof *kept);
    }
}

INLINE void load_columns(const float *p, int64_t count, const int n, lanes *to) {
    for (int w = 0; w < n; w++) {
        const int64_t left = count - w * OE_LANES;
        to[w] = load_some(p + w * OE_LANES, left < OE_LANES ? left : OE_LANES);
    }
}

INLINE void store_columns(float *p, int64_t count, const int n, const lanes *x) {
    for (int w = 0; w < n; w++) {
        const int64_t left = count - w * OE_LANES;
        store_some(p + w * OE_LANES, left < OE_LANES ? left : OE_LANES, x[w]);
    }
}

#endif
