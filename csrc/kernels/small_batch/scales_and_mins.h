/* What Q4_K and Q5_K have in common: a block begins with f16 d, f16 dmin and 12 bytes that hold 8 scales and 8 mins of
 * 6 bits. A weight of part j of 32 is d * scale[j] * code - dmin * min[j]. */
#ifndef OE_SB_SCALES_AND_MINS_H
#define OE_SB_SCALES_AND_MINS_H

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef struct weight_block {
    float d, dmin;
    uint8_t scale[8], least[8];
    int8_t code[256];
} weight_block;

static inline void oe_sb_unpack_scales(const uint8_t *p, weight_block *x) {
    const uint8_t *parts = p + 4;
    x->d = oe_sb_read_f16(p);
    x->dmin = oe_sb_read_f16(p + 2);
    for (int j = 0; j < 4; j++) {
        x->scale[j] = parts[j] & 63;
        x->least[j] = parts[4 + j] & 63;
        x->scale[4 + j] = (uint8_t)((parts[8 + j] & 15) | (parts[j] >> 6) << 4);
        x->least[4 + j] = (uint8_t)(parts[8 + j] >> 4 | (parts[4 + j] >> 6) << 4);
    }
}

static inline float oe_sb_product_with_mins(const weight_block *x, const oe_act256 *act) {
    int32_t sum = 0, least = 0;
    for (int j = 0; j < 8; j++) {
        sum += x->scale[j] * oe_sb_dot(x->code + 32 * j, act->q + 32 * j, 32);
        least += x->least[j] * act->sum32[j];
    }
    return (x->d * (float)sum - x->dmin * (float)least) * act->d;
}

#else
#include "kernels/small_batch/whole_blocks.h"

/* d in the low half of each lane, dmin in the high half. */
INLINE ints read_steps(window w) {
    ints head[4];
    load_words(w, 0, head);
    return head[0];
}

/* Byte j of [i]: the scale of part 4i + j. */
INLINE void read_scales(window w, ints scales[2]) {
    ints x[4];
    load_words(w, 0, x);
    scales[0] = low_bits(x[1], 0, 0x3f);
    scales[1] = ints_or(low_bits(x[3], 0, 0x0f), ints_shift_left(low_bits(x[1], 6, 0x03), 4));
}

/* 16 bits each of [i]: the mins of the parts 2i and 2i + 1. */
INLINE void read_mins(window w, ints mins[4]) {
    ints x[4];
    load_words(w, 0, x);
    const ints low = low_bits(x[2], 0, 0x3f);
    const ints high = ints_or(low_bits(x[3], 4, 0x0f), ints_shift_left(low_bits(x[2], 6, 0x03), 4));
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        mins[j] = shorts_shift_right(byte_pair(low, j), 8);
        mins[2 + j] = shorts_shift_right(byte_pair(high, j), 8);
    }
}

#ifdef WHOLE_BLOCKS
/* Bytes of codes have parts j and j + 1 of 32 in their halves, and 64 bytes the parts j, j + 1, j + 2 and j + 3. */
INLINE void whole_acts(const int8_t *q, ints acts[4]) {
#pragma GCC unroll 4
    for (int z = 0; z < 4; z++) {
        acts[z] = turned(q + z / 2 * 128, z % 2);
    }
}

/* add_block of a window in fours: add_up_wholes with `scales`, less `excess`. */
INLINE void add_wholes_with_mins(const int n_tile, const int high, window w, const uint32_t *scales, ints excess,
                                 const oe_act256 *act, floats *out) {
    ints mins[4], least[WHOLE_ROWS], sums[WHOLE_ROWS];
    read_mins(w, mins);
#pragma GCC unroll 4
    for (int n = 0; n < n_tile; n++) {
        least[n] = kept(times_sums(true, 4, mins, act[OE_QUAD * n].sum32, act + OE_QUAD * n));
    }
    const ints steps = kept(read_steps(w));
    add_up_wholes(n_tile, high, w, scales, act, sums);
#pragma GCC unroll 4
    for (int n = 0; n < n_tile; n++) {
        add_with_mins(true, steps, ints_subtract(sums[n], excess), least[n], act + OE_QUAD * n, out + n);
    }
}
#endif

#endif
#endif
