/* Products of codes and activations, see lanes.h, with VPMADDUBSW, which adds two products in 16 bits. */
#define HAS_VNNI 0

/* Factors of 16 bits, twice in each lane. */
INLINE ints byte_twice(ints words, int j) {
    const int first = 0x00800080 + 0x01000100 * j;
    return bytes_pick(words, bytes_of_16(first, first + 0x04000400, first + 0x08000800, first + 0x0c000c00));
}

INLINE ints part_factor(ints words, int j) { return shorts_shift_right(byte_twice(words, j), 8); }

INLINE ints signed_part_factor(ints words, int j) { return shorts_shift_right_signed(byte_twice(words, j), 8); }

INLINE ints signed_part_factor_256(ints words, int j) { return byte_twice(words, j); }

/* How many words of products of codes up to `most` add up in 16 bits, two neighbours each: a power of 2, 8 at most. */
INLINE int words_that_fit(const int most) {
    const int fit = 32767 / (2 * 127 * most);
    return fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

INLINE void add_part(const bool fours, const int n_tile, const int words, const int most, const ints *codes,
                     ints factor, const oe_act256 *act, int from, ints *sum) {
    const int fit = words_that_fit(most) < words ? words_that_fit(most) : words;
#pragma GCC unroll 4
    for (int first = 0; first < words; first += fit) {
#pragma GCC unroll 8
        for (int n = 0; n < n_tile; n++) {
            const oe_act256 *a = act + OE_QUAD * n;
            ints dot = shorts_products_of_bytes(codes[first], act_word(fours, a->q + from + 4 * first, a));
#pragma GCC unroll 8
            for (int i = first + 1; i < first + fit; i++) {
                dot = shorts_add(dot, shorts_products_of_bytes(codes[i], act_word(fours, a->q + from + 4 * i, a)));
            }
            sum[n] = ints_add(sum[n], ints_pair_products(dot, factor));
        }
    }
}

/* `sum` and the products of 32 codes of sizes up to `most`; `with_signs` says whether codes have signs. */
INLINE ints sum_32(const bool fours, const int most, const bool with_signs, const ints *codes, ints sum,
                   const oe_act32 *act) {
    const int fit = words_that_fit(most);
    ints dot = shorts_set(0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const ints word = act_word(fours, act->q + 4 * i, act);
        const ints q = with_signs ? bytes_with_sign(word, codes[i]) : word;
        const ints pairs = shorts_products_of_bytes(with_signs ? bytes_size(codes[i]) : codes[i], q);
        dot = i % fit == 0 ? pairs : shorts_add(dot, pairs);
        if ((i + 1) % fit == 0) {
            sum = ints_add(sum, ints_pair_products(dot, shorts_set(1)));
        }
    }
    return sum;
}

INLINE ints dot_32(const bool fours, const int most, const ints *codes, ints dot, const oe_act32 *act) {
    return sum_32(fours, most, false, codes, dot, act);
}

INLINE ints ready_signed(ints codes) { return codes; }

INLINE void add_signed_part(const bool fours, const int n_tile, const int words, const ints *codes, ints factor,
                            const oe_act256 *act, int from, ints *sum) {
#pragma GCC unroll 8
    for (int i = 0; i < words; i++) {
        const ints size = bytes_size(codes[i]);
#pragma GCC unroll 8
        for (int n = 0; n < n_tile; n++) {
            const oe_act256 *a = act + OE_QUAD * n;
            const ints q = bytes_with_sign(act_word(fours, a->q + from + 4 * i, a), codes[i]);
            sum[n] = ints_add(sum[n], ints_pair_products(shorts_products_of_bytes(size, q), factor));
        }
    }
}

/* A code's size times the activation with the code's sign. */
INLINE ints dot_32_signed(const bool fours, const int most, const ints *codes, const oe_act32 *act) {
    return sum_32(fours, most, true, codes, ints_set(0), act);
}
