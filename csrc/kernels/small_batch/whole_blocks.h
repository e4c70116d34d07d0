/* A single row of activations with four blocks of 256 each of four rows of weights, for AVX-512 (lanes_avx512.h). Codes
 * are multiplied as they lie, so that lanes hold parts of one block's sum; what is turned, and added up, are the sums
 * of 16 blocks. Turning codes takes inserts and words that are repeated, and all of them the two ports that shuffles
 * have on Zen 4: it waited for these, not for memory (measured). Activations are those of multiply_interleaved with the
 * q of each block in one piece (WHOLE). A file defines before it calls add_up_wholes:
 *
 *      whole_acts     INLINE void whole_acts(const int8_t *q, ints acts[4]): 256 activations, in the order of codes
 *      whole_codes    INLINE void whole_codes(const uint8_t *block, ints codes[4])
 *      whole_factors  INLINE void whole_factors(const uint8_t *block, const uint32_t *scales, ints factors[4]): those
 *                     of the lanes' parts; scales[16 * i] are the block's, if the file passes any. Where
 *                     fits_in_16_bits, factors[0] and factors[1] alone, of 16 bits: in each 16 bytes of factors[i],
 *                     4 times the factor for codes[2 * i], then 4 times that for codes[2 * i + 1] */
#ifndef OE_SB_WHOLE_BLOCKS_H
#define OE_SB_WHOLE_BLOCKS_H

#include "kernels/small_batch/tile_sums.h"

#if defined(__AVX512VNNI__) && !defined(OE_SB_TILES)
#define WHOLE_BLOCKS
#define WHOLE 256

/* 64 bytes each of every other 16 or 32 bytes of the 128 at `at`. */
INLINE ints turned(const void *at, const int which) {
    const ints a = _mm512_loadu_si512(at), b = _mm512_loadu_si512((const char *)at + 64);
    return which == 0 ? _mm512_shuffle_i32x4(a, b, 0x44) : which == 1 ? _mm512_shuffle_i32x4(a, b, 0xee)
         : which == 2 ? _mm512_shuffle_i32x4(a, b, 0x88) : _mm512_shuffle_i32x4(a, b, 0xdd);
}

/* The 32 bytes at `at` twice, and each rotated to the left. */
INLINE ints rotated_twice(const uint8_t *at, int first, int second) {
    const ints twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)at));
    return _mm512_rolv_epi32(twice, _mm512_mask_blend_epi32(0xff00, ints_set(first & 31), ints_set(second & 31)));
}

INLINE void whole_acts(const int8_t *q, ints acts[4]);
INLINE void whole_codes(const uint8_t *block, ints codes[4]);
INLINE void whole_factors(const uint8_t *block, const uint32_t *scales, ints factors[4]);

/* Whether a sum of 4 products fits in 16 bits, for codes up to `most`. Then two vectors of sums become one, which takes
 * half as many multiplications by factors. */
INLINE bool fits_in_16_bits(const int most) { return 4 * 127 * most < 1 << 15; }

/* The products of a block's codes and factors with the activations, in 16 sums. */
INLINE ints add_up_whole(const int most, const ints codes[4], const ints factors[4], const ints acts[4]) {
    ints dots[4], sum = ints_set(0);
#pragma GCC unroll 4
    for (int z = 0; z < 4; z++) {
        dots[z] = ints_add_products_of_bytes(ints_set(0), codes[z], acts[z]);
    }
    if (fits_in_16_bits(most)) {
        sum = ints_add_pair_products(sum, _mm512_packs_epi32(dots[0], dots[1]), factors[0]);
        return ints_add_pair_products(sum, _mm512_packs_epi32(dots[2], dots[3]), factors[1]);
    }
#pragma GCC unroll 4
    for (int z = 0; z < 4; z++) {
        sum = ints_add(sum, ints_multiply(dots[z], factors[z]));
    }
    return sum;
}

/* The sums of the first w.blocks of each four with a row of activations, each in its block's lane. `most`: the largest
 * code. `scales`: a word of each lane and behind it another, or NULL. */
INLINE ints add_up_wholes(const int most, window w, const uint32_t *scales, const oe_act256 *act) {
    ints folded[4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++) {
        ints acts[4], part[4];
        folded[b] = ints_set(0);
        if (b >= w.blocks) {
            continue;
        }
        whole_acts((const int8_t *)act + b * WHOLE, acts);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            fetch_part(w, BLOCK_BYTES, 4 * b + i, 16);
            const uint8_t *block = w.at + (size_t)b * BLOCK_BYTES + (size_t)i * w.far;
            ints codes[4], factors[4];
            whole_codes(block, codes);
            whole_factors(block, scales ? scales + 4 * i + b : NULL, factors);
            part[i] = add_up_whole(most, codes, factors, acts);
        }
        folded[b] = fold_parts(part);
    }
    return fold_words(folded);
}
#endif

#endif
