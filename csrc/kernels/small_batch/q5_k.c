/* Q5_K: 256 weights in 176 bytes: d, dmin, scales and mins as scales_and_mins.h has them; the highest bits of the 256
 * codes, bit j of byte i belonging to code i of part j; their low 4 bits. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 176

#include "kernels/small_batch/scales_and_mins.h"

typedef oe_act256 act_block;

#ifdef OE_SB_SCALAR

static void unpack(const uint8_t *p, weight_block *x) {
    const uint8_t *high = p + 16, *low = p + 48;
    oe_sb_unpack_scales(p, x);
    for (int i = 0; i < 256; i++) {
        const int part = i / 32, at = i % 32;
        const uint8_t byte = low[part / 2 * 32 + at];
        x->code[i] = (int8_t)((part % 2 ? byte >> 4 : byte & 15) | (high[at] >> part & 1) << 4);
    }
}

#define product oe_sb_product_with_mins
#include "kernels/small_batch/scalar_product.h"
#else

/* The codes of a part, from the words of all high bits. `low` keeps those of the low bits that a part shares with the
 * next. */
INLINE void read_codes(const int part, window w, ints *low, const ints *high, ints *codes) {
    if (part % 2 == 0) {
        load_words(w, 48 + 16 * (size_t)part, low);
        load_words(w, 64 + 16 * (size_t)part, low + 4);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const ints bit = part < 4 ? ints_shift_left(high[i], 4 - part) : ints_shift_right(high[i], part - 4);
        codes[i] = ints_or(low_bits(low[i], 4 * (part % 2), 0x0f), ints_and(bit, bytes_set(0x10)));
    }
}

#define PART_WORDS 8
#define MOST 31
#define WITH_MINIMA 1
#include "kernels/small_batch/panel256.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    ints low[8], high[8], codes[8], scales[2], mins[4];
    read_mins(w, mins);
    put_minima(x, read_steps(w), mins);
    read_scales(w, scales);
    load_words(w, 16, high);
    load_words(w, 32, high + 4);
#pragma GCC unroll 8
    for (int part = 0; part < 8; part++) {
        read_codes(part, w, low, high, codes);
        put_part(x, part, codes, panel_factor(scales[part / 4], part % 4));
    }
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

#ifdef WHOLE_BLOCKS
INLINE void whole_sums(const int n_tile, const uint8_t *block, const uint32_t *scales, const ints acts[][4],
                       const whole_masks *masks, ints *sums) {
    const ints first = bytes_of_16((int)0x80008000u, (int)0x80008000u, (int)0x80018001u, (int)0x80018001u);
    const ints picked = _mm512_mask_blend_epi32(0xff00, first, ints_add(first, ints_set(0x00020002)));
    ints codes[4], factors[2];
#pragma GCC unroll 4
    for (int z = 0; z < 4; z++) { /* the bits of parts 0 and 2, 1 and 3, 4 and 6, 5 and 7 */
        const int part = z / 2 * 4 + z % 2;
        const ints words = ints_shift_right(_mm512_loadu_si512(block + 48 + z / 2 * 64), z % 2 * 4);
        const ints bits = rotated_twice(block + 16, 4 - part, 2 - part);
        codes[z] = ints_select(masks->high, bits, ints_and(words, masks->low));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        factors[i] = bytes_pick(ints_set((int32_t)scales[16 * i]), picked);
    }
    add_up_for_rows(n_tile, 31, codes, factors, acts, sums);
}
#endif

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
#ifdef WHOLE_BLOCKS
    if (fours) {
        ints scales[2];
        uint32_t words[2 * LANES];
        read_scales(w, scales);
        memcpy(words, scales, sizeof words);
        __asm__("" : "+m"(words)); /* so that they are repeated from memory */
        add_wholes_with_mins(n_tile, 0x10, w, words, ints_set(0), act, out);
        return;
    }
#endif
    ints sum[WIDE_TILE], low[8], high[8], codes[8], scales[2], mins[4];
    read_scales(w, scales);
    load_words(w, 16, high);
    load_words(w, 32, high + 4);
    clear_sums(n_tile, sum);
#pragma GCC unroll 8
    for (int part = 0; part < 8; part++) {
        fetch_part(w, BLOCK_BYTES, part, 8);
        read_codes(part, w, low, high, codes);
        add_part(fours, n_tile, 8, 31, codes, part_factor(scales[part / 4], part % 4), act, 32 * part, sum);
        end_basic_block();
    }
    const ints steps = read_steps(w);
    read_mins(w, mins);
    add_sums_with_mins(fours, n_tile, steps, sum, 4, mins, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_256(q5_k);
