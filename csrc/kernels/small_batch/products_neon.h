/* Products of codes and activations, see lanes.h, with SDOT: codes are from -128 to 127 and have their signs, so none
 * is made unsigned and nothing is to be taken back. */
#define HAS_VNNI 0

INLINE ints part_factor(ints words, int j) { return byte_of(words, j); }

INLINE ints signed_part_factor(ints words, int j) {
    return ints_shift_right_signed(ints_shift_left(words, 24 - 8 * j), 24);
}

INLINE void add_signed_part(const bool fours, const int n_tile, const int words, const ints *codes, ints factor,
                            const oe_act256 *act, int from, ints *sum) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        ints dot = ints_set(0);
#pragma GCC unroll 8
        for (int i = 0; i < words; i++) {
            dot = ints_add_products_of_bytes(dot, codes[i], act_word(fours, a->q + from + 4 * i, a));
        }
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
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        dot = ints_add_products_of_bytes(dot, codes[i], act_word(fours, act->q + 4 * i, act));
    }
    return dot;
}

INLINE ints ready_signed(ints codes) { return codes; }

INLINE ints dot_32_signed(const bool fours, const int most, const ints *codes, const oe_act32 *act) {
    return dot_32(fours, most, codes, ints_set(0), act);
}
