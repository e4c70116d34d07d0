/* Products of codes with two rows of activations at a time, with SMMLA: 32 products an instruction, where SDOT has 16.
 * Sums of whole numbers, so the bits are the same. A single row stays with SDOT, and so do `fours`, which have no
 * second. */
#ifndef OE_SB_PRODUCTS_I8MM_H
#define OE_SB_PRODUCTS_I8MM_H

/* dot[0] with the activations from `first` on and dot[1] with those from `second` on; `words` is a multiple of 4. A
 * vector holds 8 codes of each of two rows of weights: the same ones for all rows of activations, so the compiler makes
 * them once. */
INLINE void dots_of_pair(const int words, const ints *codes, const int8_t *first, const int8_t *second, ints dot[2]) {
    int32x4_t sum[4]; /* of rows 2i and 2i + 1 of weights: first, second, first, second */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        sum[i] = vdupq_n_s32(0);
    }
#pragma GCC unroll 4
    for (int i = 0; i < words; i += 2) {
        const int8x16_t q = vcombine_s8(vld1_s8(first + 4 * i), vld1_s8(second + 4 * i));
        const ints near = unpack_low_32(codes[i], codes[i + 1]), far = unpack_high_32(codes[i], codes[i + 1]);
        sum[0] = vmmlaq_s32(sum[0], (int8x16_t)near.low, q);
        sum[1] = vmmlaq_s32(sum[1], (int8x16_t)far.low, q);
        sum[2] = vmmlaq_s32(sum[2], (int8x16_t)near.high, q);
        sum[3] = vmmlaq_s32(sum[3], (int8x16_t)far.high, q);
    }
    dot[0] = (ints){vuzp1q_s32(sum[0], sum[1]), vuzp1q_s32(sum[2], sum[3])};
    dot[1] = (ints){vuzp2q_s32(sum[0], sum[1]), vuzp2q_s32(sum[2], sum[3])};
}

/* add_signed_part for rows of activations in pairs: how many it took. */
INLINE int add_parts_of_pairs(const int n_tile, const int words, const ints *codes, ints factor, const oe_act256 *act,
                              int from, ints *sum) {
#pragma GCC unroll 8
    for (int n = 0; n + 1 < n_tile; n += 2) {
        const int8_t *q = act[OE_QUAD * n].q + from;
        ints dot[2];
        dots_of_pair(words, codes, q, q + OE_QUAD * sizeof *act, dot);
        sum[n] = ints_add(sum[n], ints_multiply(dot[0], factor));
        sum[n + 1] = ints_add(sum[n + 1], ints_multiply(dot[1], factor));
    }
    return n_tile / 2 * 2;
}

#endif
