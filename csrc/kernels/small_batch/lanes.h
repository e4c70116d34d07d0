/* Vectors of 32-bit lanes for the kernels of quantized weights: LANES (16 with AVX-512, else 8) blocks of weights
 * at a time, one in each lane. They are the blocks of LANES rows at the same place, with the same activations in all
 * lanes; or (`fours`) 4 blocks each of LANES / 4 rows, with the same activations for each.
 *
 * Codes of weights are multiplied with activations (signed bytes, from -127 to 127) four at a time: VPDPBUSD takes
 * unsigned codes and adds up in 32 bits, and so does SDOT with signed ones. AVX2 alone has VPMADDUBSW, which adds two
 * products in 16 bits. */
#ifndef OE_SB_LANES_H
#define OE_SB_LANES_H

#include <stdbool.h>
#include <string.h>

#if defined(OE_NEON)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include "kernels/small_batch/activations.h"

#define INLINE static inline __attribute__((always_inline))

#include "kernels/small_batch/fetch.h"
#define TILE 8 /* rows of activations at a time: their sums, and 8 vectors of codes */
#define WIDE_TILE 16 /* with sums in memory, so that a weight is unpacked once for them */

/* LANES blocks of weights: the block in lane 4 * i + j is at + j * near + i * far. */
typedef struct window {
    const uint8_t *at;
    size_t near, far;
    bool in_fours;        /* blocks lie side by side in fours; all of a four may be read */
    int blocks;           /* of each four, those that whole_blocks.h multiplies */
    const uint8_t *ahead; /* what to fetch meanwhile, as many bytes; or NULL */
    oe_sb_fetch by;       /* and where to */
} window;

#if defined(__AVX512VNNI__)
#include "kernels/small_batch/lanes_avx512.h"
#elif defined(OE_NEON)
#include "kernels/small_batch/lanes_neon.h"
#else
#include "kernels/small_batch/lanes_avx2.h"
#endif

/* Ends a basic block, to shorten compilation: GCC's time grows with the square of a block's length, and was a minute
 * for some kernels. */
INLINE void end_basic_block(void) {
    __asm__ goto("" : : : : next);
next:;
}

/* -- activations --------------------------------------------------------------------------------------------------- */

/* A word of activations for each lane, from its place in the block `act`. */
INLINE ints act_word(const bool fours, const void *place, const void *act) {
    const char *word = place;
    if (fours) { /* the words of 4 blocks are interleaved */
        return ints_repeat((const char *)act + OE_QUAD * (word - (const char *)act));
    }
    int32_t same;
    memcpy(&same, word, sizeof same);
    return ints_set(same);
}

/* sum + 4 products of unsigned bytes, or 2 of shorts, with the activations at `place`. AVX-512 repeats a word while it
 * multiplies, which GCC does not know: with an instruction more for each product, loads were what tiles waited for. */
#if defined(__AVX512VNNI__)
#define ADD_PRODUCTS(name, instruction, otherwise)                                                                     \
    INLINE ints name(const bool fours, ints sum, ints x, const void *place, const void *act) {                         \
        if (fours) {                                                                                                   \
            return otherwise(sum, x, act_word(true, place, act));                                                      \
        }                                                                                                              \
        __asm__(instruction " %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(x), "m"(*(const char(*)[4])place));               \
        return sum;                                                                                                    \
    }
ADD_PRODUCTS(add_act_bytes, "vpdpbusd", ints_add_products_of_bytes)
ADD_PRODUCTS(add_act_pairs, "vpdpwssd", ints_add_pair_products)
#else
#if defined(__AVXVNNI__)
INLINE ints add_act_bytes(const bool fours, ints sum, ints x, const void *place, const void *act) {
    return ints_add_products_of_bytes(sum, x, act_word(fours, place, act));
}
#endif
INLINE ints add_act_pairs(const bool fours, ints sum, ints x, const void *place, const void *act) {
    return ints_add_pair_products(sum, x, act_word(fours, place, act));
}
#endif

INLINE floats act_float(const bool fours, const void *place, const void *act) {
    return floats_from_bits(act_word(fours, place, act));
}

/* -- what blocks hold ---------------------------------------------------------------------------------------------- */

/* 16 bytes of each block, turned: each lane of word[j] holds bytes 4j .. 4j + 3 of its block. Column j has those of the
 * lanes j, 4 + j and so on. The compiler drops unused words, so they cost nothing. */
INLINE void turn_columns(const ints column[4], ints word[4]) {
    const ints a = unpack_low_32(column[0], column[1]), b = unpack_high_32(column[0], column[1]);
    const ints c = unpack_low_32(column[2], column[3]), d = unpack_high_32(column[2], column[3]);
    word[0] = unpack_low_64(a, c);
    word[1] = unpack_high_64(a, c);
    word[2] = unpack_low_64(b, d);
    word[3] = unpack_high_64(b, d);
}

/* The 16 bytes at `offset`. Of ROWS_OF_FOURS each word[i] has a row's, in the order of load_fours. */
INLINE void load_words(window w, size_t offset, ints word[4]) {
#ifdef FOURS_IN_TWO
    if (w.in_fours) {
        load_fours(w, offset, word);
        return;
    }
#endif
    const ints column[4] = {load_column(w, offset, 0), load_column(w, offset, 1), load_column(w, offset, 2),
                            load_column(w, offset, 3)};
    turn_columns(column, word);
}

/* The word at `offset` of each block, of which no byte behind offset + 15 is read. */
INLINE ints load_word(window w, size_t offset) {
#ifdef ROWS_OF_FOURS
    if (w.in_fours) {
        return load_word_of_fours(w, offset);
    }
#endif
    ints x[4];
    load_words(w, offset, x);
    return x[0];
}

/* The bits of `mask` in each byte, after a shift of the whole lane to the right. */
INLINE ints low_bits(ints x, int shift, int mask) { return ints_and(ints_shift_right(x, shift), bytes_set(mask)); }

INLINE ints byte_of(ints words, int j) { return ints_and(ints_shift_right(words, 8 * j), ints_set(255)); }

/* x in the first n lanes of each 4, y in the others. */
INLINE floats floats_of_first(int n, floats x, floats y) {
    const int32_t number[4] = {0, 1, 2, 3};
    return floats_from_bits(ints_where_less(ints_repeat(number), ints_set(n), bits_of_floats(x), bits_of_floats(y)));
}

/* The f16 in the low half of each lane, and in the high half. */
INLINE floats half_low(ints words) { return floats_from_halves(words); }
INLINE floats half_high(ints words) { return floats_from_halves(ints_shift_right(words, 16)); }

INLINE floats read_half(window w, size_t offset) { return half_low(load_word(w, offset)); } /* of each block */

/* Bytes 2j and 2j + 1 of each lane as two 16-bit numbers, 256 times as large. */
INLINE ints byte_pair(ints words, int j) {
    const int first = j ? 0x03800280 : 0x01800080;
    return bytes_pick(words, bytes_of_16(first, first + 0x04000400, first + 0x08000800, first + 0x0c000c00));
}

/* 32 codes of 4 bits from 16 bytes at `offset`: the low halves are the first 16 codes, the high halves the others. */
INLINE void load_codes_of_4_bits(window w, size_t offset, ints codes[8]) {
    ints words[4];
    load_words(w, offset, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(words[i], 0, 0x0f);
        codes[4 + i] = low_bits(words[i], 4, 0x0f);
    }
}

/* The same, with the entry of a `table` of 16 bytes in each code's place. */
INLINE void load_picked_codes(window w, size_t offset, ints table, ints codes[8]) {
    load_codes_of_4_bits(w, offset, codes);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        codes[i] = bytes_pick(table, codes[i]);
    }
}

/* Adds 16 to code 4 * i + j, byte j of codes[i], where that bit of the lane is set. */
INLINE void add_fifth_bits(window w, ints bits, ints codes[8]) {
#ifdef ROWS_OF_FOURS
    if (w.in_fours) {
        add_fifth_bits_of_rows(bits, codes);
        return;
    }
#endif
    (void)w;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const int first = 0x01010101 * j;
        const ints byte = bytes_pick(bits, bytes_of_16(first, first + 0x04040404, first + 0x08080808,
                                                       first + 0x0c0c0c0c));
        codes[2 * j] = bytes_add_where(codes[2 * j], byte, ints_set(0x08040201), bytes_set(16));
        codes[2 * j + 1] = bytes_add_where(codes[2 * j + 1], byte, ints_set((int32_t)0x80402010), bytes_set(16));
    }
}

/* Bytes from 0 to 63, less 32. */
INLINE ints bytes_minus_32(ints x) { return ints_xor(ints_add(x, bytes_set(0x60)), bytes_set(0x80)); }

/* Fetches, or has add_block fetch, the blocks that lie `ahead` bytes behind these `share` bytes, of rows from `group`
 * on. Rows lie one after the other, so that each step through a group of rows fetches its share of later ones in order,
 * as memory likes it best. Behind the last row come those of p->next, if any. */
INLINE void fetch_ahead(window *w, const oe_sb_product *p, size_t group, int64_t step, const size_t share,
                        size_t ahead) {
    const size_t all = (size_t)p->m * p->row_bytes, from = group + (size_t)step * share + ahead;
    w->ahead = from + share <= all ? p->weights + from : p->next && from >= all ? p->next + (from - all) : NULL;
    w->by = p->variant.fetch;
    if (w->by == OE_SB_FETCH_NONE) {
        w->ahead = NULL;
    } else if (w->by == OE_SB_FETCH_DEEP && from + share + OE_SB_DEEPER > all) {
        w->by = OE_SB_FETCH_SPREAD;
    } else if (w->by == OE_SB_FETCH_BURST && w->ahead) {
        fetch_lines(w->ahead, 0, (share + 63) / 64, OE_SB_FETCH_BURST);
        w->ahead = NULL;
    }
}

/* Cache lines up to the end of the first `part` of `parts` of LANES blocks. */
INLINE size_t lines_until(const size_t bytes, const int part, const int parts) {
    return (LANES * bytes * (size_t)part / (size_t)parts + 63) / 64;
}

/* Fetches part `part` of `parts` of the blocks ahead, of `bytes` each. */
INLINE void fetch_part(window w, const size_t bytes, const int part, const int parts) {
    if (w.ahead) {
        fetch_lines(w.ahead, lines_until(bytes, part, parts), lines_until(bytes, part + 1, parts), w.by);
    }
}

/* -- products of codes and activations ----------------------------------------------------------------------------- */

/* For blocks in parts of 4 * `words` codes with a whole factor for each part: part_factor and signed_part_factor make
 * the factor from byte j of each lane; add_part adds factor * (codes times the n-th row's activations from number
 * `from` on) to sum[n]. Codes are unsigned and at most `most`. add_signed_part takes codes from -127 to 127 that
 * ready_signed made ready; without_excess ends its sum.
 *
 * With VNNI, add_part takes the low halves of the codes' sum and of the factor where the sum fits in 16 bits; the high
 * half of the factor is 0 then. signed_part_factor_256 makes a factor 256 times as large of 16 bits, which is a byte
 * that is moved and not shifted. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include "kernels/small_batch/products_vnni.h"
#elif defined(OE_NEON)
#include "kernels/small_batch/products_neon.h"
#else
#include "kernels/small_batch/products_avx2.h"
#endif

/* Pairs of 16-bit factors times pairs of sums of activations. */
INLINE ints times_sums(const bool fours, const int pairs, const ints *factor, const int16_t *sums,
                       const oe_act256 *act) {
    ints total = ints_set(0);
#pragma GCC unroll 8
    for (int j = 0; j < pairs; j++) {
        total = add_act_pairs(fours, total, factor[j], sums + 2 * j, act);
    }
    return total;
}

/* The sum that add_signed_part made of all parts of 32. With VNNI its codes are 128 larger: `pair` are 128 times the
 * factors of the parts, in 16 bits. */
INLINE ints without_excess(const bool fours, ints sum, const ints pair[4], const oe_act256 *act) {
    return HAS_VNNI ? ints_subtract(sum, times_sums(fours, 4, pair, act->sum32, act)) : sum;
}

/* *out += x * the activations' own factor, which is `d`. */
INLINE void add_scaled(const bool fours, floats x, const float *d, const void *act, floats *out) {
    *out = floats_add(*out, floats_multiply(x, act_float(fours, d, act)));
}

/* *out += (d * dot + 8 * eighth * the sum of the activations) * their own factor. Eighths are as exact as the whole. */
INLINE void add_scaled_from(const bool fours, floats d, ints dot, floats minus_eighth, const oe_act32 *act,
                            floats *out) {
    const floats minus8 = floats_from_ints(act_word(fours, &act->minus8, act));
    const floats above = floats_multiply(d, floats_from_ints(dot));
    add_scaled(fours, floats_add(above, floats_multiply(minus_eighth, minus8)), &act->d, act, out);
}

/* *out += (d * sum - dmin * least) * the activations' own factor. The low half of each lane of `steps` is d, the high
 * half dmin. */
INLINE void add_with_mins(const bool fours, ints steps, ints sum, ints least, const oe_act256 *act, floats *out) {
    const floats most = floats_multiply(half_low(steps), floats_from_ints(sum));
    const floats x = floats_subtract(most, floats_multiply(half_high(steps), floats_from_ints(least)));
    add_scaled(fours, x, &act->d, act, out);
}

#endif
