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

/* Takes rows of activations in pairs, where there is SMMLA: how many it took. Weights are d * (code - excess), with
 * `excess` 0, 8 or 16, or with `minus_eighth`, if given, as add_scaled_from takes it. */
#ifdef __ARM_FEATURE_MATMUL_INT8
INLINE int add_pairs_of_rows(const int n_tile, const int excess, floats d, const floats *minus_eighth,
                             const ints *codes, const oe_act32 *act, floats *out) {
#pragma GCC unroll 8
    for (int n = 0; n + 1 < n_tile; n += 2) {
        const oe_act32 *a = act + OE_QUAD * n;
        ints dot[2];
        dots_of_pair(8, codes, a->q, a[OE_QUAD].q, dot);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++, a += OE_QUAD) {
            if (minus_eighth) {
                add_scaled_from(false, d, dot[i], *minus_eighth, a, out + n + i);
            } else {
                const ints sum = ints_add(dot[i], ints_set(excess / 8 * a->minus8));
                add_scaled(false, floats_multiply(d, floats_from_ints(sum)), &a->d, a, out + n + i);
            }
        }
    }
    return n_tile / 2 * 2;
}
#else
#define add_pairs_of_rows(...) 0
#endif

/* Weights d * (code - excess), with codes from 0 to 2 * excess - 1; `excess` is 8 or 16. */
INLINE void add_block_above(const bool fours, const int n_tile, const int excess, floats d, const ints *codes,
                            const oe_act32 *act, floats *out) {
    int n = add_pairs_of_rows(n_tile, excess, d, NULL, codes, act, out);
#pragma GCC unroll 8
    for (; n < n_tile; n++) {
        const oe_act32 *a = act + OE_QUAD * n;
        const ints minus8 = act_word(fours, &a->minus8, a);
        const ints dot = dot_32(fours, 2 * excess - 1, codes, excess == 8 ? minus8 : ints_add(minus8, minus8), a);
        add_scaled(fours, floats_multiply(d, floats_from_ints(dot)), &a->d, a, out + n);
    }
}

/* Weights d * code, with codes from -`most` to `most`, or from -128, that ready_signed made ready. */
INLINE void add_signed_block(const bool fours, const int n_tile, const int most, floats d, const ints *codes,
                             const oe_act32 *act, floats *out) {
    int n = add_pairs_of_rows(n_tile, 0, d, NULL, codes, act, out);
#pragma GCC unroll 8
    for (; n < n_tile; n++) {
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
