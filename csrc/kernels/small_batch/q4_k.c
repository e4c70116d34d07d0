/* Q4_K: 256 weights in 144 bytes: f16 d, f16 dmin; 8 scales and 8 mins of 6 bits in 12 bytes; 256 codes of 4 bits.
 * A weight of part j of 32 is d * scale[j] * code - dmin * min[j]. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 144

typedef oe_act256 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef struct weight_block {
    float d, dmin;
    uint8_t scale[8], least[8];
    int8_t code[256];
} weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    const uint8_t *parts = p + 4, *codes = p + 16;
    x->d = oe_sb_read_f16(p);
    x->dmin = oe_sb_read_f16(p + 2);
    for (int j = 0; j < 4; j++) {
        x->scale[j] = parts[j] & 63;
        x->least[j] = parts[4 + j] & 63;
        x->scale[4 + j] = (uint8_t)((parts[8 + j] & 15) | (parts[j] >> 6) << 4);
        x->least[4 + j] = (uint8_t)(parts[8 + j] >> 4 | (parts[4 + j] >> 6) << 4);
    }
    for (int i = 0; i < 256; i++) {
        const uint8_t byte = codes[i / 64 * 32 + i % 32];
        x->code[i] = (int8_t)(i % 64 < 32 ? byte & 15 : byte >> 4);
    }
}

static float product(const weight_block *x, const act_block *act) {
    int32_t sum = 0, least = 0;
    for (int j = 0; j < 8; j++) {
        sum += x->scale[j] * oe_sb_dot(x->code + 32 * j, act->q + 32 * j, 32);
        least += x->least[j] * act->sum32[j];
    }
    return (x->d * (float)sum - x->dmin * (float)least) * act->d;
}

#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/lanes.h"

/* Byte j of [i]: the scale of part 4i + j. */
INLINE void read_scales(window w, ints scales[2]) {
    ints x[4];
    load_words(w, 0, x);
    scales[0] = low_bits(x[1], 0, 0x3f);
    scales[1] = ints_or(low_bits(x[3], 0, 0x0f), ints_shift_left(low_bits(x[1], 6, 0x03), 4));
}

/* 16 bits each of [i]: the mins of the parts 2i and 2i + 1. */
INLINE void read_mins(window w, ints mins[4]) {
    ints x[4];
    load_words(w, 0, x);
    const ints low = low_bits(x[2], 0, 0x3f);
    const ints high = ints_or(low_bits(x[3], 4, 0x0f), ints_shift_left(low_bits(x[2], 6, 0x03), 4));
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        mins[j] = shorts_shift_right(byte_pair(low, j), 8);
        mins[2 + j] = shorts_shift_right(byte_pair(high, j), 8);
    }
}

#ifdef OE_SB_TILES
#define MINS 4
#define MIN_SUMS sum32
#include "kernels/small_batch/panel256.h"

INLINE void unpack_block(window w, panel_block *x) {
    ints words[8], codes[8], scales[2], head[4];
    load_words(w, 0, head);
    x->scales.d = half_low(head[0]);
    x->scales.dmin = half_high(head[0]);
    read_mins(w, x->scales.mins);
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
            put_part(x, 16 * j + 8 * half, 8, codes, factor_of(scales[j / 2], 2 * (j % 2) + half));
        }
    }
}

#include "kernels/small_batch/amx_product.h"
#else

/* Adds the parts 2j and 2j + 1 to `low` and `high`, which with VNNI is 16 times as large: codes in the high 4 bits of
 * bytes are multiplied as they are. */
INLINE void add_parts(const bool single, const int n_tile, const ints *words, const ints *scales, int j,
                      const act_block *act, ints *low, ints *high) {
    ints codes[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        codes[i] = ints_and(words[i], bytes_set(0x0f));
    }
    add_part(single, n_tile, 8, 15, codes, part_factor(scales[j / 2], 2 * (j % 2)), act, 64 * j, low);
    if (!HAS_VNNI) {
        end_basic_block();
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        codes[i] = HAS_VNNI ? ints_and(words[i], bytes_set(0xf0)) : low_bits(words[i], 4, 0x0f);
    }
    add_part(single, n_tile, 8, 15, codes, part_factor(scales[j / 2], 2 * (j % 2) + 1), act, 64 * j + 32, high);
}

INLINE void add_block(const bool single, const int n_tile, window w, const act_block *act, floats *out) {
    ints low[TILE], high[TILE], words[8], scales[2], mins[4], head[4];
    read_scales(w, scales);
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        low[n] = ints_set(0);
        high[n] = ints_set(0);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        load_words(w, 16 + 32 * (size_t)j, words);
        load_words(w, 32 + 32 * (size_t)j, words + 4);
        add_parts(single, n_tile, words, scales, j, act, low, high);
        if (j == 1 || !HAS_VNNI) { /* with VNNI seldom: it can use the longer blocks */
            end_basic_block();
        }
    }
    load_words(w, 0, head);
    read_mins(w, mins);
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const act_block *a = act + OE_QUAD * n;
        const ints sum = ints_add(low[n], HAS_VNNI ? ints_shift_right_signed(high[n], 4) : high[n]);
        const floats most = floats_multiply(half_low(head[0]), floats_from_ints(sum));
        const ints least = times_sums(single, 4, mins, a->sum32, a);
        const floats x = floats_subtract(most, floats_multiply(half_high(head[0]), floats_from_ints(least)));
        add_scaled(single, x, &a->d, a, out + n);
    }
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_256(q4_k);
