/* Q5_0: 32 weights in 22 bytes: f16 d, the fifth bits of the codes in 4 bytes, their other 4 bits in 16 bytes. A weight
 * is d * (code - 16). */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 22
#define ABOVE 16

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

static void read_codes(const uint8_t *block, int8_t code[32]) {
    oe_sb_codes_of_4_bits(block + 6, code);
    oe_sb_add_fifth_bits(block + 2, code);
}
#else
#include "kernels/small_batch/tile_sums.h"

INLINE void read_codes(window w, ints codes[8]) {
    load_codes_of_4_bits(w, 6, codes);
    if (w.in_fours) {
        add_fifth_bits(w, load_word(w, 2), codes);
    } else {
        ints head[4]; /* the first is the one that has d */
        load_words(w, 0, head);
        add_fifth_bits(w, ints_or(ints_shift_right(head[0], 16), ints_shift_left(head[1], 16)), codes);
    }
}

#ifdef ROWS_OF_FOURS
#define ADD_FOURS add_fours

/* Numbers of the pair of bytes `at` of block b in two vectors, the second of which begins HIGH bytes further on. */
#define HIGH (OE_QUAD * BLOCK_BYTES - 64)
#define PAIR(b, at) ((BLOCK_BYTES * (b) + (at)) / 2 + (BLOCK_BYTES * (b) + (at) < 64 ? 0 : (64 - HIGH) / 2))
#define OF_4(at) PAIR(0, at), PAIR(1, at), PAIR(2, at), PAIR(3, at)
#define CODES_OF(b) \
    PAIR(b, 6), PAIR(b, 8), PAIR(b, 10), PAIR(b, 12), PAIR(b, 14), PAIR(b, 16), PAIR(b, 18), PAIR(b, 20)

/* add_block for a single row of activations. Codes are multiplied as they lie, 4 lanes to a block, so that fifth bits
 * are a mask; turned are activations and sums, which are fewer. (On Zen 5 a quarter faster from cache than turning
 * codes. Masks are loaded: by way of general registers it is no faster.) */
INLINE void add_fours(window w, const act_block *act, floats *out) {
    const ints turn = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const char *const q = (const char *)act + OE_QUAD * offsetof(act_block, q);
    const ints first = _mm512_permutexvar_epi32(turn, _mm512_loadu_si512(q));
    const ints last = _mm512_permutexvar_epi32(turn, _mm512_loadu_si512(q + 64));
    const shorts codes_at = {CODES_OF(0), CODES_OF(1), CODES_OF(2), CODES_OF(3)};
    const shorts head_at = {OF_4(2), OF_4(4), OF_4(0)};
    uint64_t head[4][4]; /* of each row of weights: fifth bits of the first 16 codes, and of the others; d */
    ints sum[4];
    fetch_part(w, BLOCK_BYTES, 0, 1);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const uint8_t *p = w.at + (size_t)i * w.far;
        const ints low = _mm512_loadu_si512(p), high = _mm512_loadu_si512(p + HIGH);
        const ints codes = _mm512_permutex2var_epi16(low, (ints)codes_at, high);
        const ints heads = _mm512_permutex2var_epi16(low, (ints)head_at, high);
        _mm256_storeu_si256((__m256i *)head[i], _mm512_castsi512_si256(heads));
        const ints a = low_bits(codes, 0, 0x0f), b = low_bits(codes, 4, 0x0f);
        const __mmask64 a_more = _load_mask64((__mmask64 *)&head[i][0]);
        const __mmask64 b_more = _load_mask64((__mmask64 *)&head[i][1]);
        sum[i] = ints_add_products_of_bytes(ints_set(0), _mm512_mask_add_epi8(a, a_more, a, bytes_set(16)), first);
        sum[i] = ints_add_products_of_bytes(sum[i], _mm512_mask_add_epi8(b, b_more, b, bytes_set(16)), last);
    }
    const ints minus8 = act_word(true, &act->minus8, act);
    const ints dot = ints_add(_mm512_permutexvar_epi32(turn, fold_words(sum)), ints_add(minus8, minus8));
    const __m256i d = _mm256_setr_epi64x((int64_t)head[0][2], (int64_t)head[1][2], (int64_t)head[2][2],
                                         (int64_t)head[3][2]);
    add_scaled(true, floats_multiply(_mm512_cvtph_ps(d), floats_from_ints(dot)), &act->d, act, out);
}
#endif
#endif

#include "kernels/small_batch/factor_and_offset.h"

OE_SB_DEFINE_32(q5_0);
