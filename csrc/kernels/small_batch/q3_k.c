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

/* Words of a block: scales and d. */
INLINE void read_last(window w, ints last[4]) {
    ints column[4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; j++) {
        column[j] = two_bytes_on(load_column(w, BLOCK_BYTES - 16, j));
    }
    turn_columns(column, last);
}

/* Byte j of [i]: the scale of part 4i + j, from -32 to 31. */
INLINE void read_scales(const ints last[4], ints scale[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const ints high = i == 3 ? ints_shift_right(last[2], 2) : ints_shift_left(last[2], 4 - 2 * i);
        const ints low = low_bits(last[i % 2], 4 * (i / 2), 0x0f);
        scale[i] = bytes_minus_32(ints_or(low, ints_and(high, bytes_set(0x30))));
    }
}

/* The q-th of four times 64 codes, two in each byte: those of the first and third of four runs, and of the others. Its
 * parts are part_of(q, 0) and following. */
INLINE void read_pairs(const int q, window w, ints even[4], ints odd[4]) {
    /* bits 0 and 2 of a number from 0 to 15 become bits 2 and 6, bits 1 and 3 half as much */
    const ints spread = bytes_of_16(0x06020400, 0x46424440, 0x26222420, 0x66626460);
    ints high[4], low[4];
    load_words(w, 16 * (size_t)(q % 2), high);
    load_words(w, 32 + 16 * (size_t)q, low);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const ints bits = bytes_pick(spread, low_bits(high[i], 4 * (q / 2), 0x0f));
        even[i] = ints_select(bytes_set(0x44), bits, low[i]);
        odd[i] = ints_select(bytes_set(0x44), ints_add(bits, bits), ints_shift_right(low[i], 2));
    }
}

/* The number of the part that is the run-th of these. */
INLINE int part_of(const int q, const int run) { return 8 * (q / 2) + q % 2 + 2 * run; }

INLINE void codes_of(const int run, const ints even[4], const ints odd[4], ints codes[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(run % 2 ? odd[i] : even[i], 4 * (run / 2), 0x07);
    }
}

#define PART_WORDS 4
#define MOST 7
#define WITH_MINIMA 0
#include "kernels/small_batch/panel256.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    ints last[4], scale[4], even[4], odd[4], codes[4];
    read_last(w, last);
    read_scales(last, scale);
    put_factor(x, half_low(last[3]));
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        read_pairs(q, w, even, odd);
#pragma GCC unroll 4
        for (int run = 0; run < 4; run++) {
            const int part = part_of(q, run);
            codes_of(run, even, odd, codes);
            signed_codes(4, codes, 4);
            put_part(x, part, codes, signed_panel_factor(scale[part / 4], part % 4));
        }
    }
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

/* Scales are multiplied by 256, which saves shifts: the largest sum is 256 * 32 * 256 * 7 * 127, below 2^31. */
INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    ints sum[WIDE_TILE], last[4], scale[4], even[4], odd[4], codes[4], pair[8];
    read_last(w, last);
    read_scales(last, scale);
    clear_sums(n_tile, sum);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        read_pairs(q, w, even, odd);
#pragma GCC unroll 4
        for (int run = 0; run < 4; run++) {
            const int part = part_of(q, run);
            fetch_part(w, BLOCK_BYTES, 4 * q + run, 16);
            codes_of(run, even, odd, codes);
            add_part(fours, n_tile, 4, MOST, codes, signed_part_factor_256(scale[part / 4], part % 4), act,
                     16 * part, sum);
            if (run % 2) {
                end_basic_block();
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        pair[i] = byte_pair(scale[i / 2], i % 2);
    }
    const floats d = floats_multiply(half_low(last[3]), floats_set(1.0f / 256));
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const act_block *a = act + OE_QUAD * n;
        const ints above = ints_shift_left(times_sums(fours, 8, pair, a->sum16, a), 2);
        add_scaled(fours, floats_multiply(d, floats_from_ints(ints_subtract(sum[n], above))), &a->d, a, out + n);
    }
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_256(q3_k);
