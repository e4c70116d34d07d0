/* 16 blocks of weights at a time, one in each 32-bit lane: VPDPBUSD adds 4 products of codes (unsigned) and activations
 * (signed) to each lane. The blocks are those of 16 rows at one place, with the same activations in all lanes, or, for
 * a single row of activations ("one"), 4 blocks each of 4 rows, with the same activations for each row.
 * Compiled with AVX-512 switched on; called where the CPU has it. */
#include "kernels/small_batch.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#include <string.h>

#define LANES 16
#define TILE 8 /* rows of activations at a time: 8 sums, 8 registers of codes and their temporaries fit 32 registers */
#define INLINE static inline __attribute__((always_inline))

typedef struct window { /* 16 blocks of weights: that in lane 4 * i + j is at + j * near + i * far */
    const uint8_t *at;
    size_t near, far;
} window;

INLINE __m512i byte_set(int value) { return _mm512_set1_epi8((char)value); }

/* A word of activations for each lane, from its place in a block of them. */
INLINE __m512i act_word(const int one, const void *place, const void *acts) {
    const char *word = place;
    if (one) { /* those of 4 blocks lie side by side */
        const char *quad = (const char *)acts + OE_QUAD * (word - (const char *)acts);
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)quad));
    }
    int32_t same;
    memcpy(&same, word, sizeof same);
    return _mm512_set1_epi32(same);
}

INLINE __m512 act_float(const int one, const void *place, const void *acts) {
    return _mm512_castsi512_ps(act_word(one, place, acts));
}

/* 16 bytes each of the lanes j, 4 + j, 8 + j, 12 + j. (Masked loads merge on more of the CPU's ports than inserts.) */
INLINE __m512i load_column(window w, size_t offset, size_t j) {
    const uint8_t *p = w.at + offset + j * w.near;
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
    x = _mm512_mask_broadcast_i32x4(x, 0x00f0, _mm_loadu_si128((const __m128i *)(p + w.far)));
    x = _mm512_mask_broadcast_i32x4(x, 0x0f00, _mm_loadu_si128((const __m128i *)(p + 2 * w.far)));
    return _mm512_mask_broadcast_i32x4(x, 0xf000, _mm_loadu_si128((const __m128i *)(p + 3 * w.far)));
}

/* 16 bytes at `offset` of each block, turned: each lane of word[j] holds bytes 4j .. 4j + 3 of its block. */
INLINE void load_words(window w, size_t offset, __m512i word[4]) {
    const __m512i r0 = load_column(w, offset, 0), r1 = load_column(w, offset, 1);
    const __m512i r2 = load_column(w, offset, 2), r3 = load_column(w, offset, 3);
    const __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpackhi_epi32(r0, r1);
    const __m512i c = _mm512_unpacklo_epi32(r2, r3), d = _mm512_unpackhi_epi32(r2, r3);
    word[0] = _mm512_unpacklo_epi64(a, c);
    word[1] = _mm512_unpackhi_epi64(a, c);
    word[2] = _mm512_unpacklo_epi64(b, d);
    word[3] = _mm512_unpackhi_epi64(b, d);
}

INLINE __m512 half_low(__m512i words) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)); }

INLINE __m512 half_high(__m512i words) { return half_low(_mm512_srli_epi32(words, 16)); }

INLINE __m512i low_bits(__m512i x, int shift, int mask) {
    return _mm512_and_si512(_mm512_srli_epi32(x, (unsigned)shift), byte_set(mask));
}

/* Fetch what lies `ahead` bytes behind these 16 blocks, of rows from `group` on. Rows lie one after the other, so that
 * each step through a group of rows fetches its share of later ones in order, as memory likes it best. */
INLINE void prefetch(const oe_sb_product *p, size_t group, int64_t step, size_t share, size_t ahead) {
    const size_t from = group + (size_t)step * share + ahead;
    if (from + share <= (size_t)p->m * p->row_bytes) {
        for (size_t i = 0; i < share; i += 64) {
            _mm_prefetch((const char *)(p->weights + from + i), _MM_HINT_T0);
        }
    }
}

/* sum[n] += scale * (codes times the n-th row's activations from q on) / 2^shift, over `words` words of 4. */
INLINE void add_scaled(const int one, const int n_tile, const int words, const __m512i *codes, const int shift,
                       __m512i scale, const oe_act256 *act, int from, __m512i *sum) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        __m512i dot = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < words; i++) {
            const oe_act256 *a = act + OE_QUAD * n;
            dot = _mm512_dpbusd_epi32(dot, codes[i], act_word(one, a->q + from + 4 * i, a));
        }
        dot = shift ? _mm512_srai_epi32(dot, (unsigned)shift) : dot;
        sum[n] = _mm512_add_epi32(sum[n], _mm512_mullo_epi32(dot, scale));
    }
}

/* Pairs of 16-bit factors times pairs of sums of activations. */
INLINE __m512i times_sums(const int one, const int pairs, const __m512i *factor, const int16_t *sums,
                          const oe_act256 *act) {
    __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < pairs; j++) {
        total = _mm512_dpwssd_epi32(total, factor[j], act_word(one, sums + 2 * j, act));
    }
    return total;
}

INLINE __m512i byte_of(__m512i words, int j) {
    return _mm512_and_si512(_mm512_srli_epi32(words, 8 * (unsigned)j), _mm512_set1_epi32(255));
}

INLINE __m512i signed_byte_of(__m512i words, int j) {
    return _mm512_srai_epi32(_mm512_slli_epi32(words, 24 - 8 * (unsigned)j), 24);
}

/* Bytes 2j and 2j + 1 of each lane as two 16-bit numbers, 256 times as large. */
INLINE __m512i byte_pair(__m512i words, int j) {
    const int first = j ? (int)0x03800280 : (int)0x01800080;
    const __m512i picks = _mm512_broadcast_i32x4(
        _mm_setr_epi32(first, first + 0x04000400, first + 0x08000800, first + 0x0c000c00));
    return _mm512_shuffle_epi8(words, picks);
}

/* -- Q4_K: f16 d, f16 dmin, 8 scales and 8 mins of 6 bits in 12 bytes, 256 codes of 4 bits ------------------------- */

typedef struct q4k_head {
    __m512 d, dmin;
    __m512i scales[2];  /* byte j of [i]: of part 4i + j */
    __m512i mins[4];    /* 16 bits each: of the parts 2i and 2i + 1 */
} q4k_head;

INLINE void q4k_read_head(window w, q4k_head *head) {
    __m512i x[4];
    load_words(w, 0, x);
    head->d = half_low(x[0]);
    head->dmin = half_high(x[0]);
    head->scales[0] = low_bits(x[1], 0, 0x3f);
    head->scales[1] = _mm512_or_si512(low_bits(x[3], 0, 0x0f), _mm512_slli_epi32(low_bits(x[1], 6, 0x03), 4));
    const __m512i low = low_bits(x[2], 0, 0x3f);
    const __m512i high = _mm512_or_si512(low_bits(x[3], 4, 0x0f), _mm512_slli_epi32(low_bits(x[2], 6, 0x03), 4));
    for (int j = 0; j < 2; j++) {
        head->mins[j] = _mm512_srli_epi16(byte_pair(low, j), 8);
        head->mins[2 + j] = _mm512_srli_epi16(byte_pair(high, j), 8);
    }
}

INLINE void q4k_block(const int one, const int n_tile, window w, const oe_act256 *act, __m512 *out) {
    q4k_head head;
    __m512i sum[TILE], words[8], codes[8];
    q4k_read_head(w, &head);
    for (int n = 0; n < n_tile; n++) {
        sum[n] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        load_words(w, 16 + 32 * (size_t)j, words);
        load_words(w, 32 + 32 * (size_t)j, words + 4);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const int in_place = half && n_tile < 8; /* high codes 16 times as large: n_tile shifts instead of 8 */
            for (int i = 0; i < 8; i++) {
                codes[i] = in_place ? _mm512_and_si512(words[i], byte_set(0xf0)) : low_bits(words[i], 4 * half, 0x0f);
            }
            const __m512i scale = byte_of(head.scales[j / 2], 2 * (j % 2) + half);
            add_scaled(one, n_tile, 8, codes, in_place ? 4 : 0, scale, act, 64 * j + 32 * half, sum);
        }
    }
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        const __m512 least = _mm512_cvtepi32_ps(times_sums(one, 4, head.mins, a->sum32, a));
        const __m512 most = _mm512_cvtepi32_ps(sum[n]);
        const __m512 x = _mm512_sub_ps(_mm512_mul_ps(head.d, most), _mm512_mul_ps(head.dmin, least));
        out[n] = _mm512_add_ps(out[n], _mm512_mul_ps(x, act_float(one, &a->d, a)));
    }
}

/* -- Q6_K: low 4 bits, high 2 bits, 16 scales, f16 d; weights are d * scale * (code - 32) -------------------------- */

typedef struct q6k_scales {
    __m512 d;
    __m512i scale[4]; /* byte j of [i]: of part 4i + j */
    __m512i pair[8];  /* 16 bits each: 32 times those of the parts 2i and 2i + 1 */
} q6k_scales;

INLINE void q6k_read_scales(window w, q6k_scales *s) {
    __m512i last[4];
    load_words(w, 192, s->scale);
    load_words(w, 194, last); /* ends with the block */
    s->d = half_high(last[3]);
    for (int i = 0; i < 8; i++) {
        s->pair[i] = _mm512_srai_epi16(byte_pair(s->scale[i / 2], i % 2), 3);
    }
}

/* The q-th of the four runs of 16 codes that share the words: their low bits in a or b, their high bits in `high`. */
INLINE void q6k_codes(const int q, const __m512i *low, const __m512i *high, __m512i *codes) {
    for (int i = 0; i < 4; i++) {
        const __m512i bits = q < 2 ? _mm512_slli_epi32(high[i], 4 - 2 * (unsigned)q)
                                   : _mm512_srli_epi32(high[i], 2 * (unsigned)q - 4);
        codes[i] = _mm512_or_si512(low_bits(low[4 * (q % 2) + i], q < 2 ? 0 : 4, 0x0f),
                                   _mm512_and_si512(bits, byte_set(0x30)));
    }
}

INLINE void q6k_block(const int one, const int n_tile, window w, const oe_act256 *act, __m512 *out) {
    q6k_scales s;
    __m512i sum[TILE], low[8], high[4], codes[4];
    q6k_read_scales(w, &s);
    for (int n = 0; n < n_tile; n++) {
        sum[n] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) { /* 16 bytes of high bits belong to 4 runs of 16 codes */
        load_words(w, 64 * (size_t)(j / 2) + 16 * (size_t)(j % 2), low);
        load_words(w, 64 * (size_t)(j / 2) + 16 * (size_t)(j % 2) + 32, low + 4);
        load_words(w, 128 + 16 * (size_t)j, high);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            const int part = 8 * (j / 2) + j % 2 + 2 * q;
            q6k_codes(q, low, high, codes);
            add_scaled(one, n_tile, 4, codes, 0, signed_byte_of(s.scale[part / 4], part % 4), act, 16 * part, sum);
        }
    }
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        const __m512i whole = _mm512_sub_epi32(sum[n], times_sums(one, 8, s.pair, a->sum16, a));
        const __m512 x = _mm512_mul_ps(s.d, _mm512_cvtepi32_ps(whole));
        out[n] = _mm512_add_ps(out[n], _mm512_mul_ps(x, act_float(one, &a->d, a)));
    }
}

/* -- Q4_0 and Q8_0: f16 d and 32 codes; weights are d * (code - 8) and d * code ------------------------------------ */

/* The f16 at the start of each block. */
INLINE __m512 read_half(window w) {
    __m512i x[4];
    load_words(w, 0, x); /* the words that nobody uses cost nothing: the compiler drops them */
    return half_low(x[0]);
}

/* out[n] += d * act.d * (start + codes times activations). */
INLINE void add_simple(const int one, const int n_tile, const __m512i *codes, __m512 d, const int eight,
                       const oe_act32 *act, __m512 *out) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act32 *a = act + OE_QUAD * n;
        __m512i dot = act_word(one, eight ? &a->minus8 : &a->minus128, a);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            dot = _mm512_dpbusd_epi32(dot, codes[i], act_word(one, a->q + 4 * i, a));
        }
        const __m512 x = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot));
        out[n] = _mm512_add_ps(out[n], _mm512_mul_ps(x, act_float(one, &a->d, a)));
    }
}

INLINE void q40_block(const int one, const int n_tile, window w, const oe_act32 *act, __m512 *out) {
    __m512i words[4], codes[8];
    load_words(w, 2, words);
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(words[i], 0, 0x0f);
        codes[4 + i] = low_bits(words[i], 4, 0x0f);
    }
    add_simple(one, n_tile, codes, read_half(w), 1, act, out);
}

INLINE void q80_block(const int one, const int n_tile, window w, const oe_act32 *act, __m512 *out) {
    __m512i codes[8];
    load_words(w, 2, codes);
    load_words(w, 18, codes + 4);
    for (int i = 0; i < 8; i++) {
        codes[i] = _mm512_xor_si512(codes[i], byte_set(0x80)); /* code + 128, unsigned */
    }
    add_simple(one, n_tile, codes, read_half(w), 0, act, out);
}

/* -- MXFP4: one byte of exponent and 32 numbers of 4 bits, E2M1 (Open Compute Project 2023) ------------------------ */

/* Two's power of the exponent, halved, as codes are twice the numbers. */
INLINE __m512 half_power(__m512i exponent) {
    const __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(exponent, _mm512_set1_epi32(1)), 23);
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(exponent, _mm512_set1_epi32(2));
    const __m512i below = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), exponent);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(tiny, usual, below));
}

INLINE void mxfp4_block(const int one, const int n_tile, window w, const oe_act32 *act, __m512 *out) {
    /* 128 more than twice the numbers 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives */
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi32((int)0x83828180, (int)0x8c888684, 0x7d7e7f80, 0x74787a7c));
    __m512i words[4], codes[8], head[4];
    load_words(w, 1, words);
    for (int i = 0; i < 4; i++) {
        codes[i] = _mm512_shuffle_epi8(table, low_bits(words[i], 0, 0x0f));
        codes[4 + i] = _mm512_shuffle_epi8(table, low_bits(words[i], 4, 0x0f));
    }
    load_words(w, 0, head);
    add_simple(one, n_tile, codes, half_power(byte_of(head[0], 0)), 0, act, out);
}

/* -- all rows of activations, in tiles of equal size --------------------------------------------------------------- */

INLINE __m512 total(__m512 s0, __m512 s1, __m512 s2, __m512 s3) {
    return _mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3));
}

INLINE void store(const int n_tile, const __m512 (*out)[TILE], __mmask16 lanes, const oe_sb_product *p, int64_t row,
                  int64_t from) {
    for (int n = 0; n < n_tile; n++) {
        _mm512_mask_storeu_ps(oe_sb_out(p, row + n) + from, lanes, total(out[0][n], out[1][n], out[2][n], out[3][n]));
    }
}

/* Defines name_multiply(p, first, last) from name_block, which adds the products of 16 blocks to out[n]. The last 16
 * rows may overlap those before them: only results from `first` on are stored. */
#define DEFINE_MULTIPLY(name, act_t, block_bytes)                                                                      \
    INLINE void name##_tile(const int n_tile, const oe_sb_product *p, int64_t row, int64_t from, __mmask16 lanes) {    \
        const size_t group = (size_t)from * p->row_bytes;                                                              \
        const act_t *act = (const act_t *)p->acts + row * OE_QUAD;                                                     \
        window w = {p->weights + group, p->row_bytes, 4 * p->row_bytes};                                               \
        __m512 out[OE_QUAD][TILE];                                                                                     \
        memset(out, 0, sizeof out);                                                                                    \
        for (int64_t b = 0; b < p->blocks; b++, w.at += block_bytes) {                                                 \
            if (row == 0) {                                                                                            \
                prefetch(p, group, b, LANES * block_bytes, LANES * p->row_bytes);                                      \
            }                                                                                                          \
            name##_block(0, n_tile, w, act + b / OE_QUAD * p->rows * OE_QUAD + b % OE_QUAD, out[b % OE_QUAD]);         \
        }                                                                                                              \
        store(n_tile, out, lanes, p, row, from);                                                                       \
    }                                                                                                                  \
    static void name##_any_tile(int n, const oe_sb_product *p, int64_t row, int64_t from, __mmask16 lanes) {           \
        switch (n) {                                                                                                   \
        case 1: name##_tile(1, p, row, from, lanes); break;                                                            \
        case 2: name##_tile(2, p, row, from, lanes); break;                                                            \
        case 3: name##_tile(3, p, row, from, lanes); break;                                                            \
        case 4: name##_tile(4, p, row, from, lanes); break;                                                            \
        case 5: name##_tile(5, p, row, from, lanes); break;                                                            \
        case 6: name##_tile(6, p, row, from, lanes); break;                                                            \
        case 7: name##_tile(7, p, row, from, lanes); break;                                                            \
        default: name##_tile(8, p, row, from, lanes); break;                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_multiply(const oe_sb_product *p, int64_t first, int64_t last) {                                 \
        multiply(p, first, last, name##_any_tile);                                                                     \
    }

typedef void (*any_tile)(int n, const oe_sb_product *p, int64_t row, int64_t from, __mmask16 lanes);

INLINE void multiply(const oe_sb_product *p, int64_t first, int64_t last, any_tile tile) {
    for (; first < last; first += LANES) {
        const int64_t from = first + LANES <= p->m ? first : p->m - LANES;
        const __mmask16 lanes = (__mmask16)(0xffffu << (first - from));
        for (int64_t row = 0, left = p->rows; left > 0;) {
            const int64_t tiles = (left + TILE - 1) / TILE;
            const int64_t n = (left + tiles - 1) / tiles;
            tile((int)n, p, row, from, lanes);
            row += n;
            left -= n;
        }
    }
}

DEFINE_MULTIPLY(q4k, oe_act256, OE_Q4_K_BYTES)
DEFINE_MULTIPLY(q6k, oe_act256, OE_Q6_K_BYTES)
DEFINE_MULTIPLY(q40, oe_act32, OE_Q4_0_BYTES)
DEFINE_MULTIPLY(q80, oe_act32, OE_Q8_0_BYTES)
DEFINE_MULTIPLY(mxfp4, oe_act32, OE_MXFP4_BYTES)

/* -- a single row of activations ----------------------------------------------------------------------------------- */

#define FEW 4           /* rows of weights at a time */
#define NEAR_ENOUGH 4096 /* bytes that are fetched ahead at least, or they would come too late */

/* The sums s0 to s3 of each of the 4 rows lie in its 4 lanes; the first `skip` rows are not stored. */
INLINE void store_one(__m512 out, int skip, float *to) {
    const __m512 pairs = _mm512_add_ps(out, _mm512_permute_ps(out, 0xb1));
    const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4e));
    const __m128 rows = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums));
    _mm_mask_storeu_ps(to, (__mmask8)(0xf << skip & 0xf), rows);
}

/* The blocks that 4 rows have after their last whole four, and zeros for the others. */
INLINE void copy_rest(const oe_sb_product *p, size_t group, size_t block_bytes, uint8_t *rest) {
    const size_t whole = (size_t)(p->blocks / OE_QUAD * OE_QUAD), left = (size_t)p->blocks - whole;
    memset(rest, 0, FEW * OE_QUAD * block_bytes);
    for (size_t i = 0; i < FEW; i++) {
        const uint8_t *row = p->weights + group + i * p->row_bytes;
        memcpy(rest + i * OE_QUAD * block_bytes, row + whole * block_bytes, left * block_bytes);
    }
}

#define DEFINE_MULTIPLY_ONE(name, act_t, block_bytes)                                                                  \
    INLINE __m512 name##_rows(const oe_sb_product *p, size_t group, size_t ahead) {                                    \
        const act_t *act = p->acts;                                                                                    \
        window w = {p->weights + group, block_bytes, p->row_bytes};                                                    \
        __m512 out = _mm512_setzero_ps();                                                                              \
        for (int64_t quad = 0; quad < p->blocks / OE_QUAD; quad++, act += OE_QUAD, w.at += OE_QUAD * block_bytes) {    \
            prefetch(p, group, quad, LANES * block_bytes, ahead);                                                      \
            name##_block(1, 1, w, act, &out);                                                                          \
        }                                                                                                              \
        if (p->blocks % OE_QUAD) {                                                                                     \
            uint8_t rest[LANES * block_bytes];                                                                         \
            copy_rest(p, group, block_bytes, rest);                                                                    \
            name##_block(1, 1, (window){rest, block_bytes, OE_QUAD * block_bytes}, act, &out);                         \
        }                                                                                                              \
        return out;                                                                                                    \
    }                                                                                                                  \
    static void name##_multiply_one(const oe_sb_product *p, int64_t first, int64_t last) {                             \
        const size_t step = FEW * p->row_bytes, ahead = (NEAR_ENOUGH + step - 1) / step * step;                        \
        for (; first < last; first += FEW) {                                                                           \
            const int64_t from = first + FEW <= p->m ? first : p->m - FEW;                                             \
            const __m512 out = name##_rows(p, (size_t)from * p->row_bytes, ahead);                                     \
            store_one(out, (int)(first - from), oe_sb_out(p, 0) + from);                                               \
        }                                                                                                              \
    }

DEFINE_MULTIPLY_ONE(q4k, oe_act256, OE_Q4_K_BYTES)
DEFINE_MULTIPLY_ONE(q6k, oe_act256, OE_Q6_K_BYTES)
DEFINE_MULTIPLY_ONE(q40, oe_act32, OE_Q4_0_BYTES)
DEFINE_MULTIPLY_ONE(q80, oe_act32, OE_Q8_0_BYTES)
DEFINE_MULTIPLY_ONE(mxfp4, oe_act32, OE_MXFP4_BYTES)

#define ONE(name) name##_multiply_one
const oe_sb_kernel oe_sb_avx512[OE_SB_TYPES] = OE_SB_KERNELS(ONE);

#else
const oe_sb_kernel oe_sb_avx512[OE_SB_TYPES];
#endif
