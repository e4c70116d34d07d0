/* A single row of activations with four blocks of 256 each of four rows of weights, for AVX-512 (lanes_avx512.h). Codes
 * are multiplied as they lie, so that lanes hold parts of one block's sum; what is turned, and added up, are the sums
 * of 16 blocks. Turning codes takes inserts and words that are repeated, and all of them the two ports that shuffles
 * have on Zen 4: it waited for these, not for memory (measured). Activations are those of multiply_interleaved with the
 * q of each block in one piece (WHOLE). A file defines before it calls add_up_wholes:
 *
 *      whole_acts     INLINE void whole_acts(const int8_t *q, ints acts[4]): 256 activations, in the order of codes
 *      whole_sum      INLINE ints whole_sum(const uint8_t *block, const uint32_t *scales, const ints acts[4],
 *                     const whole_masks *masks): the products of a block with them times its factors, in 16 sums;
 *                     scales[16 * i] are the block's, if the file passes any */
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

/* What GCC keeps in a register. Outside of loops it would make constants again for each use, from general registers,
 * which takes the ports that shuffles need; and header words again from 16 loads. */
INLINE ints kept(ints x) {
    __asm__("" : "+v"(x));
    return x;
}

/* Bytes: of the low 4 bits, and of those that a file passes. `behind`: the last 8 lanes. */
typedef struct whole_masks {
    ints low, high;
    __mmask16 behind;
} whole_masks;

INLINE whole_masks keep_masks(int high) {
    whole_masks masks = {kept(bytes_set(0x0f)), kept(bytes_set(high)), 0xff00};
    __asm__("" : "+Yk"(masks.behind));
    return masks;
}

INLINE void whole_acts(const int8_t *q, ints acts[4]);
INLINE ints whole_sum(const uint8_t *block, const uint32_t *scales, const ints acts[4], const whole_masks *masks);

/* Whether a sum of 4 products fits in 16 bits, for codes up to `most`. Then two vectors of sums become one, which takes
 * half as many multiplications by factors. */
INLINE bool fits_in_16_bits(const int most) { return 4 * 127 * most < 1 << 15; }

/* The products of a block's codes, up to `most`, with the activations times its factors, in 16 sums. factors[z] are
 * those of codes[z] in 32 bits, or where fits_in_16_bits factors[0] and factors[1] alone, of 16 bits: in each 16 bytes
 * of factors[i], 4 times the factor for codes[2 * i], then 4 times that for codes[2 * i + 1]. */
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

/* The sums of the first w.blocks of each four with a row of activations, each in its block's lane. `high`: a mask that
 * whole_sum takes. `scales`: a word of each lane and behind it others, or NULL. */
INLINE ints add_up_wholes(const int high, window w, const uint32_t *scales, const oe_act256 *act) {
    const whole_masks masks = keep_masks(high);
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
            part[i] = whole_sum(block, scales ? scales + 4 * i + b : NULL, acts, &masks);
        }
        folded[b] = fold_parts(part);
    }
    return fold_words(folded);
}
#endif

#endif
