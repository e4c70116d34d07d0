/* Products of codes and activations, see lanes.h, with SDOT: codes are from -128 to 127 and have their signs, so none
 * is made unsigned and nothing is to be taken back. Where there is SMMLA (the extension "i8mm"), it takes two rows of
 * activations at a time (products_i8mm.h). */
#define HAS_VNNI 0

INLINE ints part_factor(ints words, int j) { return byte_of(words, j); }

INLINE ints signed_part_factor(ints words, int j) {
    return ints_shift_right_signed(ints_shift_left(words, 24 - 8 * j), 24);
}

INLINE ints signed_part_factor_256(ints words, int j) { return ints_shift_left(signed_part_factor(words, j), 8); }

INLINE ints ready_signed(ints codes) { return codes; }

/* `dot` and the products of `words` words of codes with the activations from `q` on, in the block `act`. */
INLINE ints dot_words(const bool fours, const int words, const ints *codes, ints dot, const int8_t *q,
                      const void *act) {
#pragma GCC unroll 8
    for (int i = 0; i < words; i++) {
        dot = ints_add_products_of_bytes(dot, codes[i], act_word(fours, q + 4 * i, act));
    }
    return dot;
}

#ifdef __ARM_FEATURE_MATMUL_INT8
#include "kernels/small_batch/products_i8mm.h"
#else
#define add_parts_of_pairs(...) 0
#endif

INLINE void add_signed_part(const bool fours, const int n_tile, const int words, const ints *codes, ints factor,
                            const oe_act256 *act, int from, ints *sum) {
    int n = add_parts_of_pairs(n_tile, words, codes, factor, act, from, sum);
#pragma GCC unroll 8
    for (; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        const ints dot = dot_words(fours, words, codes, ints_set(0), a->q + from, a);
        sum[n] = ints_add(sum[n], ints_multiply(dot, factor));
    }
}

INLINE void add_part(const bool fours, const int n_tile, const int words, const int most, const ints *codes,
                     ints factor, const oe_act256 *act, int from, ints *sum) {
    (void)most;
    add_signed_part(fours, n_tile, words, codes, factor, act, from, sum);
}

/* `dot` and the products of 32 codes with the activations. */
INLINE ints dot_32(const bool fours, const int most, const ints *codes, ints dot, const oe_act32 *act) {
    (void)most;
    return dot_words(fours, 8, codes, dot, act->q, act);
}

INLINE ints dot_32_signed(const bool fours, const int most, const ints *codes, const oe_act32 *act) {
    return dot_32(fours, most, codes, ints_set(0), act);
}
