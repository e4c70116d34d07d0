/* Q3_K: 256 weights in 110 bytes: the highest bits of the codes, their low 2 bits, 16 scales of 6 bits in 12 bytes,
 * f16 d. A weight of part j of 16 is d * (scale[j] - 32) * (code - 4). */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 110

typedef oe_act256 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block256 weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    const uint8_t *low = p + 32, *scales = p + 96;
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, run = i % 128 / 32, at = i % 32;
        x->code[i] = (int8_t)(((low[32 * half + at] >> 2 * run & 3) | (p[at] >> (4 * half + run) & 1) << 2) - 4);
    }
    for (int j = 0; j < 16; j++) {
        const int bits = (scales[j % 8] >> 4 * (j / 8) & 15) | (scales[8 + j % 4] >> 2 * (j / 4) & 3) << 4;
        x->scale[j] = (int8_t)(bits - 32);
    }
    x->d = oe_sb_read_f16(p + 108);
}

#define product(x, act) oe_sb_block256_product(16, x, act)
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/tile_sums.h"

typedef struct block_scales {
    floats d;
    ints scale[4]; /* byte j of [i]: of part 4i + j, from -32 to 31 */
    ints pair[8];  /* 16 bits each: 4 times those of the parts 2i and 2i + 1 */
} block_scales;

INLINE void read_scales(window w, block_scales *s) {
    ints last[4], x[3];
    load_words(w, 94, last); /* ends with the block */
    s->d = half_high(last[3]);
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        x[i] = ints_or(ints_shift_right(last[i], 16), ints_shift_left(last[i + 1], 16));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const ints high = ints_shift_left(low_bits(x[2], 2 * i, 0x03), 4);
        s->scale[i] = bytes_minus_32(ints_or(low_bits(x[i % 2], 4 * (i / 2), 0x0f), high));
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        s->pair[i] = shorts_shift_right_signed(byte_pair(s->scale[i / 2], i % 2), 6);
    }
}

/* 16 codes of the run-th of the eight parts that share the words of high bits; four share those of low bits. */
INLINE void read_codes(const int run, const ints *low, const ints *high, ints *codes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const ints bit = run < 2 ? ints_shift_left(high[i], 2 - run) : ints_shift_right(high[i], run - 2);
        codes[i] = ints_or(low_bits(low[i], 2 * (run % 4), 0x03), ints_and(bit, bytes_set(0x04)));
    }
}

/* The i-th part as they lie: all with an even number first, then the others. Returns its number; `low` and `high` keep
 * words for the parts that come next. */
INLINE int read_part(const int i, window w, ints *low, ints *high, ints *codes) {
    const int run = i % 8;
    if (run == 0) {
        load_words(w, 2 * (size_t)i, high);
    }
    if (run % 4 == 0) {
        load_words(w, 32 + 8 * (size_t)run + 2 * (size_t)(i - run), low);
    }
    read_codes(run, low, high, codes);
    return 2 * run + i / 8;
}

#define PART_WORDS 4
#define MOST 7
#define WITH_MINIMA 0
#include "kernels/small_batch/panel256.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    block_scales s;
    ints low[4], high[4], codes[4];
    read_scales(w, &s);
    put_factor(x, s.d);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const int part = read_part(i, w, low, high, codes);
        signed_codes(4, codes, 4);
        put_part(x, part, codes, signed_panel_factor(s.scale[part / 4], part % 4));
    }
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    block_scales s;
    ints sum[WIDE_TILE], low[4], high[4], codes[4];
    read_scales(w, &s);
    clear_sums(n_tile, sum);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        fetch_part(w, BLOCK_BYTES, i, 16);
        const int part = read_part(i, w, low, high, codes);
        add_part(fours, n_tile, 4, 7, codes, signed_part_factor(s.scale[part / 4], part % 4), act, 16 * part, sum);
        if (i % 2) {
            end_basic_block();
        }
    }
    add_sums_above(fours, n_tile, s.d, sum, s.pair, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_256(q3_k);
