/* Q6_K: 256 weights in 210 bytes: the low 4 bits of the codes, their high 2 bits, 16 signed scales of 8 bits, f16 d.
 * A weight of part j of 16 is d * scale[j] * (code - 32). */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 210

typedef oe_act256 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block256 weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, run = i % 128 / 32, at = i % 32;
        const uint8_t low = p[64 * half + 32 * (run % 2) + at], high = p[128 + 32 * half + at];
        x->code[i] = (int8_t)(((run < 2 ? low & 15 : low >> 4) | (high >> 2 * run & 3) << 4) - 32);
    }
    memcpy(x->scale, p + 192, 16);
    x->d = oe_sb_read_f16(p + 208);
}

#define product(x, act) oe_sb_block256_product(16, x, act)
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/whole_blocks.h"

typedef struct block_scales {
    floats d;
    ints scale[4]; /* byte j of [i]: of part 4i + j */
    ints pair[8];  /* 16 bits each: 32 times those of the parts 2i and 2i + 1 */
} block_scales;

INLINE void read_scales(window w, block_scales *s) {
    ints last[4];
    load_words(w, 192, s->scale);
    load_words(w, 194, last); /* ends with the block */
    s->d = half_high(last[3]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        s->pair[i] = shorts_shift_right_signed(byte_pair(s->scale[i / 2], i % 2), 3);
    }
}

/* The q-th of the four runs of 16 codes that share words of `low` and `high`. */
INLINE void read_codes(const int q, const ints *low, const ints *high, ints *codes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const ints bits = q < 2 ? ints_shift_left(high[i], 4 - 2 * q) : ints_shift_right(high[i], 2 * q - 4);
        codes[i] = ints_or(low_bits(low[4 * (q % 2) + i], q < 2 ? 0 : 4, 0x0f), ints_and(bits, bytes_set(0x30)));
    }
}

/* The words of the j-th of four times 64 codes: 16 bytes of high bits belong to 4 runs of 16. */
INLINE void read_words(const int j, window w, ints *low, ints *high) {
    load_words(w, 64 * (size_t)(j / 2) + 16 * (size_t)(j % 2), low);
    load_words(w, 64 * (size_t)(j / 2) + 16 * (size_t)(j % 2) + 32, low + 4);
    load_words(w, 128 + 16 * (size_t)j, high);
}

/* The number of the part that is the q-th run of these. */
INLINE int part_of(const int j, const int q) { return 8 * (j / 2) + j % 2 + 2 * q; }

#define PART_WORDS 4
#define PANELS_FROM 17 /* 17 to 23 rows would take a tile of 8 to 12 twice (measured) */
#define MOST 63
#define WITH_MINIMA 0
#include "kernels/small_batch/panel256.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    block_scales s;
    ints low[8], high[4], codes[4];
    read_scales(w, &s);
    put_factor(x, s.d);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        read_words(j, w, low, high);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            const int part = part_of(j, q);
            read_codes(q, low, high, codes);
            signed_codes(4, codes, 32);
            put_part(x, part, codes, signed_panel_factor(s.scale[part / 4], part % 4));
        }
    }
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

#ifdef WHOLE_BLOCKS
INLINE void whole_acts(const int8_t *q, ints acts[4]) { memcpy(acts, q, 256); }

INLINE void whole_sums(const int n_tile, const uint8_t *block, const uint32_t *scales, const ints acts[][4],
                       const whole_masks *masks, ints *sums) {
    const ints all = _mm512_castsi256_si512(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(block + 192))));
    const ints number = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7); /* of part */
    ints codes[4], factors[2];
    (void)scales;
#pragma GCC unroll 4
    for (int z = 0; z < 4; z++) {
        const ints words = ints_shift_right(_mm512_loadu_si512(block + z / 2 * 64), z % 2 * 4);
        const ints bits = rotated_twice(block + 128 + z / 2 * 32, 4 - z % 2 * 4, 2 - z % 2 * 4);
        codes[z] = ints_select(masks->high, bits, ints_and(words, masks->low));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const ints picked = ints_add(ints_multiply(number, ints_set(0x00010001)), ints_set(0x00080008 * i));
        factors[i] = _mm512_permutexvar_epi16(picked, all);
    }
    add_up_for_rows(n_tile, 63, codes, factors, acts, sums);
}
#endif

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    block_scales s;
    ints sum[WIDE_TILE], low[8], high[4], codes[4];
    read_scales(w, &s);
#ifdef WHOLE_BLOCKS
    if (fours) {
        add_up_wholes(n_tile, 0x30, w, NULL, act, sum);
        add_sums_above(true, n_tile, s.d, sum, s.pair, act, out);
        return;
    }
#endif
    clear_sums(n_tile, sum);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        read_words(j, w, low, high);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            const int part = part_of(j, q);
            fetch_part(w, BLOCK_BYTES, 4 * j + q, 16);
            read_codes(q, low, high, codes);
            add_part(fours, n_tile, 4, 63, codes, signed_part_factor(s.scale[part / 4], part % 4), act,
                     16 * part, sum);
            if (q % 2) {
                end_basic_block();
            }
        }
    }
    add_sums_above(fours, n_tile, s.d, sum, s.pair, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_256(q6_k);
