/* Q2_K: 256 weights in 84 bytes: 16 scales of 4 bits, each with a min in the high 4 bits of its byte; 256 codes of 2
 * bits; f16 d, f16 dmin. A weight of part j of 16 is d * scale[j] * code - dmin * min[j]. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 84

typedef oe_act256 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef struct weight_block {
    float d, dmin;
    uint8_t scale[16], least[16];
    int8_t code[256];
} weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    for (int j = 0; j < 16; j++) {
        x->scale[j] = p[j] & 15;
        x->least[j] = p[j] >> 4;
    }
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, run = i % 128 / 32, at = i % 32;
        x->code[i] = (int8_t)(p[16 + 32 * half + at] >> 2 * run & 3);
    }
    x->d = oe_sb_read_f16(p + 80);
    x->dmin = oe_sb_read_f16(p + 82);
}

static float product(const weight_block *x, const act_block *act) {
    int32_t sum = 0, least = 0;
    for (int j = 0; j < 16; j++) {
        sum += x->scale[j] * oe_sb_dot(x->code + 16 * j, act->q + 16 * j, 16);
        least += x->least[j] * act->sum16[j];
    }
    return (x->d * (float)sum - x->dmin * (float)least) * act->d;
}

#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/tile_sums.h"

/* Byte j of [i]: the scale of part 4i + j. */
INLINE void read_scales(window w, ints scales[4]) {
    load_words(w, 0, scales);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        scales[i] = low_bits(scales[i], 0, 0x0f);
    }
}

/* 16 bits each of [i]: the mins of the parts 2i and 2i + 1. */
INLINE void read_mins(window w, ints mins[8]) {
    ints x[4];
    load_words(w, 0, x);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        mins[i] = shorts_shift_right(byte_pair(x[i / 2], i % 2), 12);
    }
}

/* d in the low half of each lane, dmin in the high half. */
INLINE ints read_steps(window w) {
    ints last[4];
    load_words(w, 68, last); /* ends with the block */
    return last[3];
}

/* 16 codes of the run-th of the four parts that share the words of codes. */
INLINE void read_codes(const int run, const ints *words, ints *codes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(words[i], 2 * run, 0x03);
    }
}

/* The i-th part as they lie: 16 bytes hold codes of every other part. Returns its number; `words` keeps those bytes for
 * the parts that come next. */
INLINE int read_part(const int i, window w, ints *words, ints *codes) {
    const int quarter = i / 4, run = i % 4;
    if (run == 0) {
        load_words(w, 16 + 16 * (size_t)quarter, words);
    }
    read_codes(run, words, codes);
    return 8 * (quarter / 2) + quarter % 2 + 2 * run;
}

#define PART_WORDS 4
#define PANELS_FROM 64 /* its codes are soon unpacked again */
#define MOST 3
#define WITH_MINIMA 1
#include "kernels/small_batch/panel256.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    ints words[4], codes[4], scales[4], mins[8];
    read_mins(w, mins);
    put_minima(x, read_steps(w), mins);
    read_scales(w, scales);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const int part = read_part(i, w, words, codes);
        put_part(x, part, codes, panel_factor(scales[part / 4], part % 4));
    }
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    ints sum[WIDE_TILE], words[4], codes[4], scales[4], mins[8];
    read_scales(w, scales);
    clear_sums(n_tile, sum);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        fetch_part(w, BLOCK_BYTES, i, 16);
        const int part = read_part(i, w, words, codes);
        add_part(fours, n_tile, 4, 3, codes, part_factor(scales[part / 4], part % 4), act, 16 * part, sum);
        if (i % 2) {
            end_basic_block();
        }
    }
    const ints steps = read_steps(w);
    read_mins(w, mins);
    add_sums_with_mins(fours, n_tile, steps, sum, 8, mins, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_256(q2_k);
