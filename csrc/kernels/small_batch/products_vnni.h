/* Products of codes and activations, see lanes.h, with VPDPBUSD: codes are unsigned. */
#define HAS_VNNI 1

INLINE ints part_factor(ints words, int j) { return byte_of(words, j); }

INLINE ints signed_part_factor(ints words, int j) {
    return ints_shift_right_signed(ints_shift_left(words, 24 - 8 * j), 24);
}

INLINE ints signed_part_factor_256(ints words, int j) {
    const int first = (int)0x80800080u + 256 * j;
    return bytes_pick(words, bytes_of_16(first, first + 0x0400, first + 0x0800, first + 0x0c00));
}

INLINE void add_part(const bool fours, const int n_tile, const int words, const int most, const ints *codes,
                     ints factor, const oe_act256 *act, int from, ints *sum) {
    const bool in_16_bits = 4 * words * 127 * most < 1 << 15; /* the sum fits, and a product of 16 bits is cheaper */
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        ints dot = ints_set(0);
#pragma GCC unroll 8
        for (int i = 0; i < words; i++) {
            dot = add_act_bytes(fours, dot, codes[i], a->q + from + 4 * i, a);
        }
        sum[n] = in_16_bits ? ints_add_pair_products(sum[n], dot, factor)
                            : ints_add(sum[n], ints_multiply(dot, factor));
    }
}

/* `dot` and the products of 32 codes from 0 to `most` with the activations. */
INLINE ints dot_32(const bool fours, const int most, const ints *codes, ints dot, const oe_act32 *act) {
    ints odd = ints_set(0); /* two sums side by side, since each product waits for the one before */
    (void)most;
#ifdef ROWS_OF_FOURS
    if (fours) {
        return ints_add(dot, dots_of_rows(codes, (const char *)act + OE_QUAD * offsetof(oe_act32, q)));
    }
#endif
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        dot = add_act_bytes(fours, dot, codes[i], act->q + 4 * i, act);
        odd = add_act_bytes(fours, odd, codes[i + 1], act->q + 4 * i + 4, act);
    }
    return ints_add(dot, odd);
}

/* Signed codes as dot_32_signed takes them: 128 more, which makes them unsigned. */
INLINE ints ready_signed(ints codes) { return ints_xor(codes, bytes_set(0x80)); }

INLINE void add_signed_part(const bool fours, const int n_tile, const int words, const ints *codes, ints factor,
                            const oe_act256 *act, int from, ints *sum) {
    add_part(fours, n_tile, words, 255, codes, factor, act, from, sum);
}

/* The products of 32 codes from -`most` to `most`, or from -128. */
INLINE ints dot_32_signed(const bool fours, const int most, const ints *codes, const oe_act32 *act) {
    return dot_32(fours, most, codes, act_word(fours, &act->minus128, act), act);
}
