/* Q4_K: 256 weights in 144 bytes: d, dmin, scales and mins as scales_and_mins.h has them; 256 codes of 4 bits. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 144

#include "kernels/small_batch/scales_and_mins.h"

typedef oe_act256 act_block;

#ifdef OE_SB_SCALAR
static void unpack(const uint8_t *p, weight_block *x) {
    const uint8_t *codes = p + 16;
    oe_sb_unpack_scales(p, x);
    for (int i = 0; i < 256; i++) {
        const uint8_t byte = codes[i / 64 * 32 + i % 32];
        x->code[i] = (int8_t)(i % 64 < 32 ? byte & 15 : byte >> 4);
    }
}

#define product oe_sb_product_with_mins
#include "kernels/small_batch/scalar_product.h"
#else
#define PART_WORDS 8
#define PANELS_FROM 17 /* 17 to 23 rows would take a tile of 8 to 12 twice (measured) */
#define MOST 15
#define WITH_MINIMA 1
#include "kernels/small_batch/panel256.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    ints words[8], codes[8], scales[2], mins[4];
    read_mins(w, mins);
    put_minima(x, read_steps(w), mins);
    read_scales(w, scales);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        load_words(w, 16 + 32 * (size_t)j, words);
        load_words(w, 32 + 32 * (size_t)j, words + 4);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                codes[i] = low_bits(words[i], 4 * half, 0x0f);
            }
            put_part(x, 2 * j + half, codes, panel_factor(scales[j / 2], 2 * (j % 2) + half));
        }
    }
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

/* Adds the parts 2j and 2j + 1 to `low` and `high`, which with VNNI is 16 times as large: codes in the high 4 bits of
 * bytes are multiplied as they are. */
INLINE void add_parts(const bool fours, const int n_tile, const ints *words, const ints *scales, int j,
                      const act_block *act, ints *low, ints *high) {
    ints codes[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        codes[i] = ints_and(words[i], bytes_set(0x0f));
    }
    add_part(fours, n_tile, 8, 15, codes, part_factor(scales[j / 2], 2 * (j % 2)), act, 64 * j, low);
    if (!HAS_VNNI) {
        end_basic_block();
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        codes[i] = HAS_VNNI ? ints_and(words[i], bytes_set(0xf0)) : low_bits(words[i], 4, 0x0f);
    }
    add_part(fours, n_tile, 8, 15, codes, part_factor(scales[j / 2], 2 * (j % 2) + 1), act, 64 * j + 32, high);
}

#ifdef WHOLE_BLOCKS
/* The factors of the parts 4j and 4j + 1 of 32 in the halves of 8 lanes, those of 4j + 2 and 4j + 3 in the others. */
INLINE ints pairs_of_parts(const uint32_t *scales, const whole_masks *masks) {
    const __m128i second = _mm_cvtsi32_si128((int)scales[16]);
    return _mm512_mask_broadcastd_epi32(ints_set((int32_t)scales[0]), masks->behind, second);
}

/* Both sums of a lane fit in 16 bits. That of the high bits is 16 times as large: shifted it has its place, and the
 * other is added to it, with 2^13 so that it never borrows. The excess is 2^13 times the factor of each even part. */
INLINE void whole_sums(const int n_tile, const uint8_t *block, const uint32_t *scales, const ints acts[][4],
                       const whole_masks *masks, ints *sums) {
#pragma GCC unroll 4
    for (int n = 0; n < n_tile; n++) {
        sums[n] = ints_set(0);
    }
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        const ints x = kept(_mm512_loadu_si512(block + 16 + 64 * j));
        const ints high = ints_and(x, masks->high), low = ints_and(x, masks->low);
        const ints factors = pairs_of_parts(scales + 32 * j, masks);
#pragma GCC unroll 4
        for (int n = 0; n < n_tile; n++) {
            ints dots = ints_add_products_of_bytes(ints_set(2), high, acts[n][2 * j + 1]);
            dots = ints_add_products_of_bytes(ints_shift_left(dots, 12), low, acts[n][2 * j]);
            sums[n] = ints_add_pair_products(sums[n], dots, factors);
        }
    }
}

INLINE void add_wholes(const int n_tile, window w, const act_block *act, floats *out) {
    ints scales[2];
    uint32_t pairs[4 * LANES];
    read_scales(w, scales);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const int first = (int)0x80018000u + 0x00020002 * (i % 2);
        const ints at = bytes_of_16(first, first + 0x00040004, first + 0x00080008, first + 0x000c000c);
        _mm512_storeu_si512(pairs + LANES * i, bytes_pick(scales[i / 2], at));
    }
    __asm__("" : "+m"(pairs)); /* repeated from memory: taken out of a register, each takes the ports of shuffles */
    const ints even = ints_add_products_of_bytes(ints_set(0), scales[0], ints_set(0x00010001));
    const ints excess = ints_shift_left(ints_add_products_of_bytes(even, scales[1], ints_set(0x00010001)), 16);
    add_wholes_with_mins(n_tile, 0xf0, w, pairs, kept(excess), act, out);
}
#endif

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
#ifdef WHOLE_BLOCKS
    if (fours) {
        add_wholes(n_tile, w, act, out);
        return;
    }
#endif
    ints low[WIDE_TILE], high[WIDE_TILE], words[8], scales[2], mins[4];
    read_scales(w, scales);
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        low[n] = ints_set(0);
        high[n] = ints_set(0);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        fetch_part(w, BLOCK_BYTES, j, 4);
        load_words(w, 16 + 32 * (size_t)j, words);
        load_words(w, 32 + 32 * (size_t)j, words + 4);
        add_parts(fours, n_tile, words, scales, j, act, low, high);
        if (j == 1 || !HAS_VNNI) { /* with VNNI seldom: it can use the longer blocks */
            end_basic_block();
        }
    }
    const ints steps = read_steps(w);
    read_mins(w, mins);
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const act_block *a = act + OE_QUAD * n;
        const ints sum = ints_add(low[n], HAS_VNNI ? ints_shift_right_signed(high[n], 4) : high[n]);
        add_with_mins(fours, steps, sum, times_sums(fours, 4, mins, a->sum32, a), a, out + n);
    }
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_256(q4_k);
