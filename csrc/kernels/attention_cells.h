/* Keys and values of cells as vectors of floats, and the layout of partial results (attention.h). Included by files
 * that are compiled once for each instruction set. */
#ifndef OE_ATTENTION_CELLS_H
#define OE_ATTENTION_CELLS_H

#include "base/codes16.h"
#include "kernels/attention.h"
#include "kernels/small_batch/iq4_levels.h"

#define TILE OE_TILE /* cells whose scores are kept: their keys and values of one head fit the L1 cache */

_Static_assert(TILE % OE_LANES == 0, "scores of a tile are whole vectors");

/* Sums kept in registers. */
#if defined(__AVX512F__)
#define SUMS 16
#elif defined(__AVX2__) || defined(OE_NEON)
#define SUMS 4
#else
#define SUMS 1
#endif

_Static_assert(TILE % SUMS == 0, "cells that are taken together do not reach beyond a tile");

#define BLOCK 32 /* numbers that share a scale, an f16 at the beginning */

/* Bytes of a block, and where its other parts begin: 0 where it has none. */
typedef struct block_layout {
    int bytes, codes;
    int less;    /* what is taken off codes */
    int fifth;   /* bits 4 of all codes, of which `codes` has the others */
    int minimum; /* f16, what is added to each number */
} block_layout;

static const block_layout LAYOUT[OE_ATTENTION_TYPES] = {
    [OE_ATTENTION_Q8_0] = {34, 2, 0, 0, 0}, [OE_ATTENTION_Q5_1] = {24, 8, 0, 4, 2},
    [OE_ATTENTION_Q5_0] = {22, 6, 16, 2, 0}, [OE_ATTENTION_Q4_1] = {20, 4, 0, 0, 2},
    [OE_ATTENTION_IQ4_NL] = {18, 2, 0, 0, 0}, [OE_ATTENTION_Q4_0] = {18, 2, 8, 0, 0},
};

/* Layout of a partial result: the maximum subtracted from the scores, the same in all lanes; sums of exp(score - max),
 * one per lane; sums of exp(score - max) * value. */
#define MAX_AT 0
#define SUM_AT OE_LANES
#define VALUES_AT (2 * OE_LANES)

INLINE size_t bytes_of(const int type) { return type == OE_ATTENTION_F32 ? 4 : 2; }

INLINE uint16_t read_u16(const char *p) {
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Half 0 or 1 of a block. The codes of the first lie in the lower halves of their 16 bytes. */
INLINE lanes load_half(const int type, const char *block, int half) {
    const block_layout at = LAYOUT[type];
    const lanes scale = lanes_set_f16(read_u16(block));
    codes x = type == OE_ATTENTION_Q8_0 ? codes_load(block + at.codes + OE_LANES * half)
                                        : codes_halves(block + at.codes, 4 * half);
    if (at.fifth) {
        x = codes_raised(x, read_u16(block + at.fifth + 2 * half));
    }
    if (at.less) {
        x = codes_less(x, (int8_t)at.less);
    }
    if (type == OE_ATTENTION_IQ4_NL) {
        x = codes_picked(LEVELS, x);
    }
    return at.minimum ? lanes_fma(scale, lanes_from_codes(x), lanes_set_f16(read_u16(block + at.minimum)))
                      : lanes_mul(scale, lanes_from_codes(x));
}

/* Loads 16 numbers from i on; i is a multiple of 16. */
INLINE lanes load_whole(const int type, const char *cell, int64_t i) {
    if (type == OE_ATTENTION_F32) {
        return lanes_load((const float *)(const void *)cell + i);
    }
    if (type == OE_ATTENTION_F16) {
        return lanes_from_f16(cell + 2 * i);
    }
    if (type == OE_ATTENTION_BF16) {
        return lanes_from_bf16(cell + 2 * i);
    }
    return load_half(type, cell + i / BLOCK * LAYOUT[type].bytes, (int)(i % BLOCK) / OE_LANES);
}

/* Loads the `count` numbers that are left from i on, and 0 for the rest; a `count` of 0 means all 16. */
INLINE lanes load(const int type, const char *cell, int64_t i, int64_t count) {
    if (count == 0) {
        return load_whole(type, cell, i);
    }
    char rest[OE_LANES * sizeof(float)] = {0};
    memcpy(rest, cell + (size_t)i * bytes_of(type), (size_t)count * bytes_of(type));
    return load_whole(type, rest, 0);
}

INLINE const char *cell_of(const oe_attention_side *side, int32_t cell) {
    return side->data + side->cell * (size_t)cell;
}

INLINE void prefetch(const oe_attention_side *side, int32_t cell) {
    const char *at = cell_of(side, cell);
    for (int64_t i = 0; i < side->dim; i += 32) { /* a cache line of 16-bit numbers */
        __builtin_prefetch(at + 2 * i);
    }
}

/* to[i] = the sum of all lanes of sum[i]. */
INLINE void sum_up(const lanes *sum, float *to) {
#if defined(__AVX512F__)
    lanes_sums(sum, to);
#else
    for (int i = 0; i < SUMS; i++) {
        to[i] = lanes_sum(sum[i]);
    }
#endif
}

#endif
