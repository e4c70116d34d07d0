/* IQ4_XS: 256 weights in 136 bytes: f16 d; the high 2 bits of 8 scales of 6 bits; their low 4 bits; 256 codes of 4
 * bits, which name LEVELS. A weight of part j of 32 is d * (scale[j] - 32) * LEVELS[code]. */
#include "kernels/small_batch/activations.h"
#include "kernels/small_batch/iq4_levels.h"

#define BLOCK_BYTES 136

typedef oe_act256 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block256 weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    const int high = p[2] | p[3] << 8;
    x->d = oe_sb_read_f16(p);
    for (int j = 0; j < 8; j++) {
        const uint8_t *codes = p + 8 + 16 * j;
        x->scale[j] = (int8_t)(((p[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4) - 32);
        for (int i = 0; i < 16; i++) {
            x->code[32 * j + i] = LEVELS[codes[i] & 15];
            x->code[32 * j + 16 + i] = LEVELS[codes[i] >> 4];
        }
    }
}

#define product(x, act) oe_sb_block256_product(8, x, act)
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/whole_blocks.h"

typedef struct block_scales {
    floats d;
    ints scale[2]; /* byte j of [i]: of part 4i + j, from -32 to 31 */
    ints pair[4];  /* 16 bits each: 128 times those of the parts 2i and 2i + 1 */
} block_scales;

/* Byte j of each lane: the j-th 4 of its low 16 bits; the j-th 2 of its low 8 bits. */
INLINE ints bytes_of_4_bits(ints x) {
    x = ints_and(ints_or(x, ints_shift_left(x, 8)), ints_set(0x00ff00ff));
    return ints_and(ints_or(x, ints_shift_left(x, 4)), bytes_set(0x0f));
}

INLINE ints bytes_of_2_bits(ints x) {
    x = ints_and(ints_or(x, ints_shift_left(x, 12)), ints_set(0x000f000f));
    return ints_and(ints_or(x, ints_shift_left(x, 6)), bytes_set(0x03));
}

INLINE void read_scales(window w, block_scales *s) {
    ints head[4];
    load_words(w, 0, head);
    s->d = half_low(head[0]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const ints low = bytes_of_4_bits(ints_and(ints_shift_right(head[1], 16 * i), ints_set(0xffff)));
        const ints high = bytes_of_2_bits(ints_and(ints_shift_right(head[0], 16 + 8 * i), ints_set(0xff)));
        s->scale[i] = bytes_minus_32(ints_or(low, ints_shift_left(high, 4)));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        s->pair[i] = shorts_shift_right_signed(byte_pair(s->scale[i / 2], i % 2), 1);
    }
}

/* The levels of a part of 32, as add_signed_part takes them. */
INLINE void read_codes(const int part, window w, ints *codes) {
    load_picked_codes(w, 8 + 16 * (size_t)part, ready_signed(ints_repeat(LEVELS)), codes);
}

#define PART_WORDS 8
#define MOST 255
#define WITH_MINIMA 0
#include "kernels/small_batch/panel256.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    block_scales s;
    ints codes[8];
    read_scales(w, &s);
    put_factor(x, s.d);
#pragma GCC unroll 8
    for (int part = 0; part < 8; part++) {
        read_codes(part, w, codes);
        signed_codes(8, codes, 128);
        put_part(x, part, codes, signed_panel_factor(s.scale[part / 4], part % 4));
    }
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

#ifdef WHOLE_BLOCKS
INLINE void whole_acts(const int8_t *q, ints acts[4]) {
#pragma GCC unroll 4
    for (int z = 0; z < 4; z++) {
        acts[z] = turned(q + z / 2 * 128, 2 + z % 2);
    }
}

INLINE void whole_sums(const int n_tile, const uint8_t *block, const uint32_t *scales, const ints acts[][4],
                       const whole_masks *masks, ints *sums) {
    const ints number = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    ints codes[4], factors[4];
#pragma GCC unroll 4
    for (int z = 0; z < 4; z++) {
        const ints words = ints_shift_right(_mm512_loadu_si512(block + 8 + z / 2 * 64), z % 2 * 4);
        const __m128i four = _mm_cvtepi8_epi32(_mm_cvtsi32_si128((int)scales[16 * (z / 2)]));
        codes[z] = bytes_pick(ready_signed(ints_repeat(LEVELS)), ints_and(words, masks->low));
        factors[z] = _mm512_permutexvar_epi32(number, _mm512_castsi128_si512(four));
    }
    add_up_for_rows(n_tile, 255, codes, factors, acts, sums);
}
#endif

/* Adds up the products of all parts, with the blocks in their lanes. */
INLINE void add_up_parts(const bool fours, const int n_tile, window w, const ints scale[2], const act_block *act,
                         ints *sum) {
    ints codes[8];
    clear_sums(n_tile, sum);
#pragma GCC unroll 8
    for (int part = 0; part < 8; part++) {
        fetch_part(w, BLOCK_BYTES, part, 8);
        read_codes(part, w, codes);
        add_signed_part(fours, n_tile, 8, codes, signed_part_factor(scale[part / 4], part % 4), act, 32 * part, sum);
        end_basic_block();
    }
}

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    block_scales s;
    ints sum[WIDE_TILE];
    read_scales(w, &s);
#ifdef WHOLE_BLOCKS
    if (fours) {
        uint32_t words[2 * LANES];
        memcpy(words, s.scale, sizeof words);
        __asm__("" : "+m"(words)); /* so that they are read from memory */
        add_up_wholes(n_tile, 0, w, words, act, sum);
    } else
#endif
    {
        add_up_parts(fours, n_tile, w, s.scale, act, sum);
    }
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const act_block *a = act + OE_QUAD * n;
        const ints whole = without_excess(fours, sum[n], s.pair, a);
        add_scaled(fours, floats_multiply(s.d, floats_from_ints(whole)), &a->d, a, out + n);
    }
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_256(iq4_xs);
