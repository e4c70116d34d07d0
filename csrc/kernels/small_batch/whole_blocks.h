/* Few rows of activations with four blocks of 256 each of four rows of weights, for AVX-512 (lanes_avx512.h). Codes
 * are multiplied as they lie, so that lanes hold parts of one block's sum; what is turned, and added up, are the sums
 * of 16 blocks. Turning codes takes inserts and words that are repeated, and all of them the two ports that shuffles
 * have on Zen 4: it waited for these, not for memory (measured). Activations are those of multiply_interleaved with the
 * q of each block in one piece (WHOLE). A file defines before it calls add_up_wholes:
 *
 *      whole_acts     INLINE void whole_acts(const int8_t *q, ints acts[4]): 256 activations, in the order of codes
 *      whole_sums     INLINE void whole_sums(const int n_tile, const uint8_t *block, const uint32_t *scales,
 *                     const ints acts[][4], const whole_masks *masks, ints *sums): the products of a block with
 *                     those of each row times its factors, in 16 sums; scales[16 * i] are the block's, if the file
 *                     passes any */
#ifndef OE_SB_WHOLE_BLOCKS_H
#define OE_SB_WHOLE_BLOCKS_H

#include "kernels/small_batch/tile_sums.h"

#if defined(__AVX512VNNI__) && !defined(OE_SB_TILES)
#define WHOLE_BLOCKS
#define WHOLE 256
#define WHOLE_ROWS 2 /* of activations */

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
INLINE void whole_sums(const int n_tile, const uint8_t *block, const uint32_t *scales, const ints acts[][4],
                       const whole_masks *masks, ints *sums);

/* Whether a sum of 4 products fits in 16 bits, for codes up to `most`. Then two vectors of sums become one, which takes
 * half as many multiplications by factors. */
INLINE bool fits_in_16_bits(const int most) { return 4 * 127 * most < 1 << 15; }

/* The products of a block's codes, up to `most`, with a row's activations times its factors, in 16 sums. factors[z] are
 * those of codes[z] in 32 bits, or where fits_in_16_bits factors[0] and factors[1] alone, of 16 bits: in each 16 bytes
 * of factors[i], 4 times the factor for codes[2 * i], then 4 times that for codes[2 * i + 1]. */
INLINE ints add_up_whole(const int most, const ints codes[4], const ints *factors, const ints acts[4]) {
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

/* add_up_whole for each row. */
INLINE void add_up_for_rows(const int n_tile, const int most, const ints codes[4], const ints *factors,
                            const ints acts[][4], ints *sums) {
#pragma GCC unroll 4
    for (int n = 0; n < n_tile; n++) {
        sums[n] = add_up_whole(most, codes, factors, acts[n]);
    }
}

/* The sums of the first w.blocks of each four with n_tile rows of activations, each in its block's lane. `high`: a mask
 * that whole_sums takes. `scales`: a word of each lane and behind it others, or NULL. */
INLINE void add_up_wholes(const int n_tile, const int high, window w, const uint32_t *scales, const oe_act256 *act,
                          ints *sums) {
    const whole_masks masks = keep_masks(high);
    ints folded[WHOLE_ROWS][4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++) {
        ints acts[WHOLE_ROWS][4], part[WHOLE_ROWS][4], sum[WHOLE_ROWS];
#pragma GCC unroll 4
        for (int n = 0; n < n_tile; n++) {
            folded[n][b] = ints_set(0);
        }
        if (b >= w.blocks) {
            continue;
        }
#pragma GCC unroll 4
        for (int n = 0; n < n_tile; n++) {
            whole_acts((const int8_t *)(act + OE_QUAD * n) + b * WHOLE, acts[n]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            fetch_part(w, BLOCK_BYTES, 4 * b + i, 16);
            const uint8_t *block = w.at + (size_t)b * BLOCK_BYTES + (size_t)i * w.far;
            whole_sums(n_tile, block, scales ? scales + 4 * i + b : NULL, acts, &masks, sum);
#pragma GCC unroll 4
            for (int n = 0; n < n_tile; n++) {
                part[n][i] = sum[n];
            }
        }
#pragma GCC unroll 4
        for (int n = 0; n < n_tile; n++) {
            folded[n][b] = fold_parts(part[n]);
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < n_tile; n++) {
        sums[n] = fold_words(folded[n]);
    }
}
#endif

#endif
