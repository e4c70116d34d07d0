/* The sums that add_block (vector_product.h) makes, for all n_tile rows of activations. */
#ifndef OE_SB_TILE_SUMS_H
#define OE_SB_TILE_SUMS_H

#include "kernels/small_batch/lanes.h"

INLINE void clear_sums(const int n_tile, ints *sum) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        sum[n] = ints_set(0);
    }
}

INLINE void ready_all_signed(ints codes[8]) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        codes[i] = ready_signed(codes[i]);
    }
}

/* -- blocks of 32 -------------------------------------------------------------------------------------------------- */

/* Weights d * (code - excess), with codes from 0 to 2 * excess - 1; `excess` is 8 or 16. */
INLINE void add_block_above(const bool fours, const int n_tile, const int excess, floats d, const ints *codes,
                            const oe_act32 *act, floats *out) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act32 *a = act + OE_QUAD * n;
        const ints minus8 = act_word(fours, &a->minus8, a);
        const ints dot = dot_32(fours, 2 * excess - 1, codes, excess == 8 ? minus8 : ints_add(minus8, minus8), a);
        add_scaled(fours, floats_multiply(d, floats_from_ints(dot)), &a->d, a, out + n);
    }
}

/* Weights d * code, with codes from -`most` to `most`, or from -128, that ready_signed made ready. */
INLINE void add_signed_block(const bool fours, const int n_tile, const int most, floats d, const ints *codes,
                             const oe_act32 *act, floats *out) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act32 *a = act + OE_QUAD * n;
        const ints dot = dot_32_signed(fours, most, codes, a);
        add_scaled(fours, floats_multiply(d, floats_from_ints(dot)), &a->d, a, out + n);
    }
}

/* -- blocks of 256 ------------------------------------------------------------------------------------------------- */

/* d * (sum[n] - `pair` times the sums of 16 activations each). */
INLINE void add_sums_above(const bool fours, const int n_tile, floats d, const ints *sum, const ints pair[8],
                           const oe_act256 *act, floats *out) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        const ints whole = ints_subtract(sum[n], times_sums(fours, 8, pair, a->sum16, a));
        add_scaled(fours, floats_multiply(d, floats_from_ints(whole)), &a->d, a, out + n);
    }
}

/* d * sum[n] - dmin * (mins times the sums of activations): 8 pairs of mins for parts of 16, or 4 for parts of 32.
 * `steps` as add_with_mins takes them. */
INLINE void add_sums_with_mins(const bool fours, const int n_tile, ints steps, const ints *sum, const int pairs,
                               const ints *mins, const oe_act256 *act, floats *out) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        const ints least = times_sums(fours, pairs, mins, pairs == 8 ? a->sum16 : a->sum32, a);
        add_with_mins(fours, steps, sum[n], least, a, out + n);
    }
}

#endif
