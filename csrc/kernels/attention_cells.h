/* Keys and values of cells as vectors of floats, and the layout of partial results (attention.h). Included by files
 * that are compiled once for each instruction set. */
#ifndef OE_ATTENTION_CELLS_H
#define OE_ATTENTION_CELLS_H

#include "base/simd16.h"
#include "kernels/attention.h"

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

#define BLOCK 32 /* numbers that share a scale in Q8_0 and Q4_0 */
#define Q8_0_BYTES 34
#define Q4_0_BYTES 18

/* Layout of a partial result: the maximum subtracted from the scores, the same in all lanes; sums of exp(score - max),
 * one per lane; sums of exp(score - max) * value. */
#define MAX_AT 0
#define SUM_AT OE_LANES
#define VALUES_AT (2 * OE_LANES)

INLINE size_t bytes_of(const int type) { return type == OE_ATTENTION_F32 ? 4 : 2; }

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
    const char *block = cell + i / BLOCK * (type == OE_ATTENTION_Q8_0 ? Q8_0_BYTES : Q4_0_BYTES);
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    /* The first half of a Q4_0 block lies in the lower halves of its 16 bytes. */
    const lanes whole = type == OE_ATTENTION_Q8_0 ? lanes_from_i8(block + 2 + i % BLOCK)
                                                  : lanes_from_i4(block + 2, (int)(i % BLOCK) / OE_LANES * 4);
    return lanes_mul(lanes_set(oe_f16_to_f32(scale)), whole);
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
