/* 8 blocks of weights at a time, one in each 32-bit lane: those of 8 rows at one place, with the same activations in
 * all lanes, or, for a single row of activations ("one"), 4 blocks each of 2 rows, with the same activations for both.
 * VPMADDUBSW multiplies codes (unsigned) with activations (signed) and adds neighbours in 16 bits. Compiled with AVX2
 * switched on; called where the CPU has it. small_batch_avxvnni.c is the same with VPDPBUSD, which adds 4 products in
 * 32 bits. */
#include "kernels/small_batch.h"

#ifdef OE_SB_VNNI
#define KERNELS oe_sb_avxvnni
#else
#define KERNELS oe_sb_avx2
#endif

#if defined(__AVX2__) && defined(__F16C__) && (defined(__AVXVNNI__) || !defined(OE_SB_VNNI))
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#define LANES 8
#define TILE 8 /* rows of activations at a time; their sums lie in the first cache, and 8 registers hold codes */
#ifdef OE_SB_VNNI
#define Q6_WORDS 4
#else
#define Q6_WORDS 2 /* whose sums of products fit 16 bits */
#endif
#define INLINE static inline __attribute__((always_inline))

typedef struct window { /* 8 blocks of weights: that in lane 4 * i + j is at + j * near + i * far */
    const uint8_t *at;
    size_t near, far;
} window;

/* A word of activations for each lane, from its place in a block of them. */
INLINE __m256i act_word(const bool one, const void *place, const void *acts) {
    const char *word = place;
    if (one) { /* those of 4 blocks lie side by side */
        const char *quad = (const char *)acts + OE_QUAD * (word - (const char *)acts);
        return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)quad));
    }
    int32_t same;
    memcpy(&same, word, sizeof same);
    return _mm256_set1_epi32(same);
}

INLINE __m256 act_float(const bool one, const void *place, const void *acts) {
    return _mm256_castsi256_ps(act_word(one, place, acts));
}

/* 16 bytes each of the lanes j and 4 + j. */
INLINE __m256i load_column(window w, size_t offset, size_t j) {
    const uint8_t *p = w.at + offset + j * w.near;
    const __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(p + w.far)), 1);
}

/* 16 bytes at `offset` of each block, turned: each lane of word[j] holds bytes 4j .. 4j + 3 of its block. */
INLINE void load_words(window w, size_t offset, __m256i word[4]) {
    const __m256i r0 = load_column(w, offset, 0), r1 = load_column(w, offset, 1);
    const __m256i r2 = load_column(w, offset, 2), r3 = load_column(w, offset, 3);
    const __m256i a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpackhi_epi32(r0, r1);
    const __m256i c = _mm256_unpacklo_epi32(r2, r3), d = _mm256_unpackhi_epi32(r2, r3);
    word[0] = _mm256_unpacklo_epi64(a, c);
    word[1] = _mm256_unpackhi_epi64(a, c);
    word[2] = _mm256_unpacklo_epi64(b, d);
    word[3] = _mm256_unpackhi_epi64(b, d);
}

/* The f16 in the low half of each lane. */
INLINE __m256 half_low(__m256i words) {
    const __m256i low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    const __m256i packed = _mm256_packus_epi32(low, low); /* each half: its 4 numbers twice */
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

INLINE __m256 half_high(__m256i words) { return half_low(_mm256_srli_epi32(words, 16)); }

INLINE __m256i low_bits(__m256i x, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi32(x, shift), _mm256_set1_epi8((char)mask));
}

/* Byte j of each lane in both of its 16-bit halves, 256 times as large. */
INLINE __m256i byte_twice(__m256i words, int j) {
    const int first = 0x00800080 + 0x01000100 * j;
    const __m256i picks = _mm256_broadcastsi128_si256(
        _mm_setr_epi32(first, first + 0x04000400, first + 0x08000800, first + 0x0c000c00));
    return _mm256_shuffle_epi8(words, picks);
}

/* Bytes 2j and 2j + 1 of each lane as two 16-bit numbers, 256 times as large. */
INLINE __m256i byte_pair(__m256i words, int j) {
    const int first = j ? 0x03800280 : 0x01800080;
    const __m256i picks = _mm256_broadcastsi128_si256(
        _mm_setr_epi32(first, first + 0x04000400, first + 0x08000800, first + 0x0c000c00));
    return _mm256_shuffle_epi8(words, picks);
}

/* Fetch what lies `ahead` bytes behind these 8 blocks, of rows from `group` on. Rows lie one after the other, so that
 * each step through a group of rows fetches its share of later ones in order, as memory likes it best. */
INLINE void prefetch(const oe_sb_product *p, size_t group, int64_t step, size_t share, size_t ahead) {
    const size_t from = group + (size_t)step * share + ahead;
    if (from + share <= (size_t)p->m * p->row_bytes) {
        for (size_t i = 0; i < share; i += 64) {
            _mm_prefetch((const char *)(p->weights + from + i), _MM_HINT_T0);
        }
    }
}

/* sum[n] += scale (in both halves of each lane) * (codes times the n-th row's activations), over `words` words of 4.
 * Without VNNI, `words` sums of products of neighbours must fit 16 bits: 8 * 2 * 15 * 127 do, and 2 * 2 * 63 * 127. */
INLINE void add_scaled(const bool one, const int n_tile, const int words, const __m256i *codes, __m256i scale,
                       const oe_act256 *act, int from, __m256i *sum) {
#ifdef OE_SB_VNNI
    scale = _mm256_srai_epi32(scale, 16);
#endif
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
#ifdef OE_SB_VNNI
        __m256i dot = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = 0; i < words; i++) {
            dot = _mm256_dpbusd_avx_epi32(dot, codes[i], act_word(one, a->q + from + 4 * i, a));
        }
        sum[n] = _mm256_add_epi32(sum[n], _mm256_mullo_epi32(dot, scale));
#else
        __m256i dot = _mm256_maddubs_epi16(codes[0], act_word(one, a->q + from, a));
#pragma GCC unroll 8
        for (int i = 1; i < words; i++) {
            dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(codes[i], act_word(one, a->q + from + 4 * i, a)));
        }
        sum[n] = _mm256_add_epi32(sum[n], _mm256_madd_epi16(dot, scale));
#endif
    }
}

/* Pairs of 16-bit factors times pairs of sums of activations. */
INLINE __m256i times_sums(const bool one, const int pairs, const __m256i *factor, const int16_t *sums,
                          const oe_act256 *act) {
    __m256i total = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = 0; j < pairs; j++) {
        total = _mm256_add_epi32(total, _mm256_madd_epi16(factor[j], act_word(one, sums + 2 * j, act)));
    }
    return total;
}

/* -- Q4_K: f16 d, f16 dmin, 8 scales and 8 mins of 6 bits in 12 bytes, 256 codes of 4 bits ------------------------- */

typedef struct q4k_head {
    __m256 d, dmin;
    __m256i scales[2]; /* byte j of [i]: of part 4i + j */
    __m256i mins[4];   /* 16 bits each: of the parts 2i and 2i + 1 */
} q4k_head;

INLINE void q4k_read_head(window w, q4k_head *head) {
    __m256i x[4];
    load_words(w, 0, x);
    head->d = half_low(x[0]);
    head->dmin = half_high(x[0]);
    head->scales[0] = low_bits(x[1], 0, 0x3f);
    head->scales[1] = _mm256_or_si256(low_bits(x[3], 0, 0x0f), _mm256_slli_epi32(low_bits(x[1], 6, 0x03), 4));
    const __m256i low = low_bits(x[2], 0, 0x3f);
    const __m256i high = _mm256_or_si256(low_bits(x[3], 4, 0x0f), _mm256_slli_epi32(low_bits(x[2], 6, 0x03), 4));
    for (int j = 0; j < 2; j++) {
        head->mins[j] = _mm256_srli_epi16(byte_pair(low, j), 8);
        head->mins[2 + j] = _mm256_srli_epi16(byte_pair(high, j), 8);
    }
}

INLINE void q4k_block(const bool one, const int n_tile, window w, const oe_act256 *act, __m256 *out) {
    q4k_head head;
    __m256i sum[TILE], words[8], codes[8];
    q4k_read_head(w, &head);
    for (int n = 0; n < n_tile; n++) {
        sum[n] = _mm256_setzero_si256();
    }
    for (int j = 0; j < 4; j++) {
        load_words(w, 16 + 32 * (size_t)j, words);
        load_words(w, 32 + 32 * (size_t)j, words + 4);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const __m256i scale = _mm256_srli_epi16(byte_twice(head.scales[j / 2], 2 * (j % 2) + half), 8);
            for (int i = 0; i < 8; i++) {
                codes[i] = low_bits(words[i], 4 * half, 0x0f);
            }
            add_scaled(one, n_tile, 8, codes, scale, act, 64 * j + 32 * half, sum);
        }
    }
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        const __m256 most = _mm256_cvtepi32_ps(sum[n]);
        const __m256 least = _mm256_cvtepi32_ps(times_sums(one, 4, head.mins, a->sum32, a));
        const __m256 x = _mm256_sub_ps(_mm256_mul_ps(head.d, most), _mm256_mul_ps(head.dmin, least));
        out[n] = _mm256_add_ps(out[n], _mm256_mul_ps(x, act_float(one, &a->d, a)));
    }
}

/* -- Q6_K: low 4 bits, high 2 bits, 16 scales, f16 d; weights are d * scale * (code - 32) -------------------------- */

typedef struct q6k_scales {
    __m256 d;
    __m256i scale[4]; /* byte j of [i]: of part 4i + j */
    __m256i pair[8];  /* 16 bits each: 32 times those of the parts 2i and 2i + 1 */
} q6k_scales;

INLINE void q6k_read_scales(window w, q6k_scales *s) {
    __m256i last[4];
    load_words(w, 192, s->scale);
    load_words(w, 194, last); /* ends with the block */
    s->d = half_high(last[3]);
    for (int i = 0; i < 8; i++) {
        s->pair[i] = _mm256_srai_epi16(byte_pair(s->scale[i / 2], i % 2), 3);
    }
}

/* The q-th of the four runs of 16 codes that share words of `low` and `high`. */
INLINE void q6k_codes(const int q, const __m256i *low, const __m256i *high, __m256i *codes) {
    for (int i = 0; i < 4; i++) {
        const __m256i bits = q < 2 ? _mm256_slli_epi32(high[i], 4 - 2 * q) : _mm256_srli_epi32(high[i], 2 * q - 4);
        codes[i] = _mm256_or_si256(low_bits(low[4 * (q % 2) + i], q < 2 ? 0 : 4, 0x0f),
                                   _mm256_and_si256(bits, _mm256_set1_epi8(0x30)));
    }
}

INLINE void q6k_block(const bool one, const int n_tile, window w, const oe_act256 *act, __m256 *out) {
    q6k_scales s;
    __m256i sum[TILE], low[8], high[4], codes[4];
    q6k_read_scales(w, &s);
    for (int n = 0; n < n_tile; n++) {
        sum[n] = _mm256_setzero_si256();
    }
    for (int j = 0; j < 4; j++) { /* 16 bytes of high bits belong to 4 runs of 16 codes */
        load_words(w, 64 * (size_t)(j / 2) + 16 * (size_t)(j % 2), low);
        load_words(w, 64 * (size_t)(j / 2) + 16 * (size_t)(j % 2) + 32, low + 4);
        load_words(w, 128 + 16 * (size_t)j, high);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) {
            const int part = 8 * (j / 2) + j % 2 + 2 * q;
            const __m256i scale = _mm256_srai_epi16(byte_twice(s.scale[part / 4], part % 4), 8);
            q6k_codes(q, low, high, codes);
            add_scaled(one, n_tile, Q6_WORDS, codes, scale, act, 16 * part, sum);
            if (Q6_WORDS < 4) {
                add_scaled(one, n_tile, Q6_WORDS, codes + 2, scale, act, 16 * part + 8, sum);
            }
        }
    }
    for (int n = 0; n < n_tile; n++) {
        const oe_act256 *a = act + OE_QUAD * n;
        const __m256i whole = _mm256_sub_epi32(sum[n], times_sums(one, 8, s.pair, a->sum16, a));
        const __m256 x = _mm256_mul_ps(s.d, _mm256_cvtepi32_ps(whole));
        out[n] = _mm256_add_ps(out[n], _mm256_mul_ps(x, act_float(one, &a->d, a)));
    }
}

/* -- Q4_0 and Q8_0: f16 d and 32 codes; weights are d * (code - 8) and d * code ------------------------------------ */

/* The f16 at the start of each block. */
INLINE __m256 read_half(window w) {
    __m256i x[4];
    load_words(w, 0, x); /* the words that nobody uses cost nothing: the compiler drops them */
    return half_low(x[0]);
}

/* *out += d * act.d * dot. */
INLINE void add_simple(const bool one, const oe_act32 *act, __m256i dot, __m256 d, __m256 *out) {
    const __m256 x = _mm256_mul_ps(d, _mm256_cvtepi32_ps(dot));
    *out = _mm256_add_ps(*out, _mm256_mul_ps(x, act_float(one, &act->d, act)));
}

#ifdef OE_SB_VNNI
/* start + codes times activations. */
INLINE __m256i dot_of(const bool one, const __m256i *codes, const void *start, const oe_act32 *act) {
    __m256i dot = act_word(one, start, act);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        dot = _mm256_dpbusd_avx_epi32(dot, codes[i], act_word(one, act->q + 4 * i, act));
    }
    return dot;
}
#endif

INLINE void q40_block(const bool one, const int n_tile, window w, const oe_act32 *act, __m256 *out) {
    __m256i words[4], codes[8];
    const __m256 d = read_half(w);
    load_words(w, 2, words);
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(words[i], 0, 0x0f);
        codes[4 + i] = low_bits(words[i], 4, 0x0f);
    }
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act32 *a = act + OE_QUAD * n;
#ifdef OE_SB_VNNI
        const __m256i dot = dot_of(one, codes, &a->minus8, a);
#else
        __m256i dot = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) { /* 8 * 2 * 15 * 127 fits 16 bits */
            dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(codes[i], act_word(one, a->q + 4 * i, a)));
        }
        dot = _mm256_madd_epi16(dot, _mm256_set1_epi16(1));
        dot = _mm256_add_epi32(dot, act_word(one, &a->minus8, a));
#endif
        add_simple(one, a, dot, d, out + n);
    }
}

INLINE void q80_block(const bool one, const int n_tile, window w, const oe_act32 *act, __m256 *out) {
    __m256i codes[8];
    const __m256 d = read_half(w);
    load_words(w, 2, codes);
    load_words(w, 18, codes + 4);
#ifdef OE_SB_VNNI
    for (int i = 0; i < 8; i++) {
        codes[i] = _mm256_xor_si256(codes[i], _mm256_set1_epi8((char)0x80)); /* code + 128, unsigned */
    }
#endif
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act32 *a = act + OE_QUAD * n;
#ifdef OE_SB_VNNI
        const __m256i dot = dot_of(one, codes, &a->minus128, a);
#else
        __m256i dot = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) { /* |code| times the activation with the code's sign: 2 * 128 * 127 fits 16 bits */
            const __m256i q = _mm256_sign_epi8(act_word(one, a->q + 4 * i, a), codes[i]);
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[i]), q);
            dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
#endif
        add_simple(one, a, dot, d, out + n);
    }
}

/* -- MXFP4: one byte of exponent and 32 numbers of 4 bits, E2M1 (Open Compute Project 2023) ------------------------ */

/* Two's power of the exponent, halved, as codes are twice the numbers. */
INLINE __m256 half_power(__m256i exponent) {
    const __m256i usual = _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponent);
    const __m256i below = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponent);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(usual, below, tiny));
}

INLINE __m256i pick(__m128i of16, __m256i codes) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(of16), codes);
}

INLINE void mxfp4_block(const bool one, const int n_tile, window w, const oe_act32 *act, __m256 *out) {
    __m256i head[4], words[4], codes[8];
    load_words(w, 0, head);
    load_words(w, 1, words);
    const __m256 d = half_power(_mm256_and_si256(head[0], _mm256_set1_epi32(255)));
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(words[i], 0, 0x0f);
        codes[4 + i] = low_bits(words[i], 4, 0x0f);
    }
#ifdef OE_SB_VNNI
    const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    for (int i = 0; i < 8; i++) {
        codes[i] = pick(_mm_xor_si128(twice, _mm_set1_epi8((char)0x80)), codes[i]); /* + 128, unsigned */
    }
#else
    const __m128i sizes = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12);
    const __m128i signs = _mm_setr_epi8(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
#endif
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const oe_act32 *a = act + OE_QUAD * n;
#ifdef OE_SB_VNNI
        const __m256i dot = dot_of(one, codes, &a->minus128, a);
#else
        __m256i dot = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) { /* 8 * 2 * 12 * 127 fits 16 bits */
            const __m256i q = _mm256_sign_epi8(act_word(one, a->q + 4 * i, a), pick(signs, codes[i]));
            dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(pick(sizes, codes[i]), q));
        }
        dot = _mm256_madd_epi16(dot, _mm256_set1_epi16(1));
#endif
        add_simple(one, a, dot, d, out + n);
    }
}

/* -- all rows of activations, in tiles of equal size --------------------------------------------------------------- */

INLINE __m256 total(__m256 s0, __m256 s1, __m256 s2, __m256 s3) {
    return _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3));
}

INLINE void store(const int n_tile, const __m256 (*out)[TILE], int skip, const oe_sb_product *p, int64_t row,
                  int64_t from) {
    for (int n = 0; n < n_tile; n++) {
        float lane[LANES];
        _mm256_storeu_ps(lane, total(out[0][n], out[1][n], out[2][n], out[3][n]));
        memcpy(oe_sb_out(p, row + n) + from + skip, lane + skip, (size_t)(LANES - skip) * sizeof *lane);
    }
}

/* Defines name_multiply(p, first, last) from name_block, which adds the products of 8 blocks to out[n]. The last 8 rows
 * may overlap those before them: only results from `first` on are stored. */
#define DEFINE_MULTIPLY(name, act_t, block_bytes)                                                                      \
    INLINE void name##_tile(const int n_tile, const oe_sb_product *p, int64_t row, int64_t from, int skip) {           \
        const size_t group = (size_t)from * p->row_bytes;                                                              \
        const act_t *act = (const act_t *)p->acts + row * OE_QUAD;                                                     \
        window w = {p->weights + group, p->row_bytes, 4 * p->row_bytes};                                               \
        __m256 out[OE_QUAD][TILE];                                                                                     \
        memset(out, 0, sizeof out);                                                                                    \
        for (int64_t b = 0; b < p->blocks; b++, w.at += block_bytes) {                                                 \
            if (row == 0) {                                                                                            \
                prefetch(p, group, b, LANES * block_bytes, LANES * p->row_bytes);                                      \
            }                                                                                                          \
            name##_block(false, n_tile, w, act + b / OE_QUAD * p->rows * OE_QUAD + b % OE_QUAD, out[b % OE_QUAD]);     \
        }                                                                                                              \
        store(n_tile, out, skip, p, row, from);                                                                        \
    }                                                                                                                  \
    static void name##_any_tile(int n, const oe_sb_product *p, int64_t row, int64_t from, int skip) {                  \
        switch (n) {                                                                                                   \
        case 1: name##_tile(1, p, row, from, skip); break;                                                             \
        case 2: name##_tile(2, p, row, from, skip); break;                                                             \
        case 3: name##_tile(3, p, row, from, skip); break;                                                             \
        case 4: name##_tile(4, p, row, from, skip); break;                                                             \
        case 5: name##_tile(5, p, row, from, skip); break;                                                             \
        case 6: name##_tile(6, p, row, from, skip); break;                                                             \
        case 7: name##_tile(7, p, row, from, skip); break;                                                             \
        default: name##_tile(8, p, row, from, skip); break;                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_multiply(const oe_sb_product *p, int64_t first, int64_t last) {                                 \
        multiply(p, first, last, name##_any_tile);                                                                     \
    }

typedef void (*any_tile)(int n, const oe_sb_product *p, int64_t row, int64_t from, int skip);

INLINE void multiply(const oe_sb_product *p, int64_t first, int64_t last, any_tile tile) {
    for (; first < last; first += LANES) {
        const int64_t from = first + LANES <= p->m ? first : p->m - LANES;
        for (int64_t row = 0, left = p->rows; left > 0;) {
            const int64_t tiles = (left + TILE - 1) / TILE;
            const int64_t n = (left + tiles - 1) / tiles;
            tile((int)n, p, row, from, (int)(first - from));
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

#define FEW 2            /* rows of weights at a time */
#define NEAR_ENOUGH 4096 /* bytes that are fetched ahead at least, or they would come too late */

/* The sums s0 to s3 of each of the 2 rows lie in its 4 lanes; the first `skip` rows are not stored. */
INLINE void store_one(__m256 out, int skip, float *to) {
    const __m256 pairs = _mm256_add_ps(out, _mm256_permute_ps(out, 0xb1));
    const __m256 sums = _mm256_add_ps(pairs, _mm256_permute_ps(pairs, 0x4e));
    if (!skip) {
        to[0] = _mm256_cvtss_f32(sums);
    }
    to[1] = _mm_cvtss_f32(_mm256_extractf128_ps(sums, 1));
}

/* The blocks that 2 rows have after their last whole four, and zeros for the others. */
INLINE void copy_rest(const oe_sb_product *p, size_t group, size_t block_bytes, uint8_t *rest) {
    const size_t whole = (size_t)(p->blocks / OE_QUAD * OE_QUAD), left = (size_t)p->blocks - whole;
    memset(rest, 0, FEW * OE_QUAD * block_bytes);
    for (size_t i = 0; i < FEW; i++) {
        const uint8_t *row = p->weights + group + i * p->row_bytes;
        memcpy(rest + i * OE_QUAD * block_bytes, row + whole * block_bytes, left * block_bytes);
    }
}

#define DEFINE_MULTIPLY_ONE(name, act_t, block_bytes)                                                                  \
    INLINE __m256 name##_rows(const oe_sb_product *p, size_t group, size_t ahead) {                                    \
        const act_t *act = p->acts;                                                                                    \
        window w = {p->weights + group, block_bytes, p->row_bytes};                                                    \
        __m256 out = _mm256_setzero_ps();                                                                              \
        for (int64_t quad = 0; quad < p->blocks / OE_QUAD; quad++, act += OE_QUAD, w.at += OE_QUAD * block_bytes) {    \
            prefetch(p, group, quad, LANES * block_bytes, ahead);                                                      \
            name##_block(true, 1, w, act, &out);                                                                       \
        }                                                                                                              \
        if (p->blocks % OE_QUAD) {                                                                                     \
            uint8_t rest[LANES * block_bytes];                                                                         \
            copy_rest(p, group, block_bytes, rest);                                                                    \
            name##_block(true, 1, (window){rest, block_bytes, OE_QUAD * block_bytes}, act, &out);                      \
        }                                                                                                              \
        return out;                                                                                                    \
    }                                                                                                                  \
    static void name##_multiply_one(const oe_sb_product *p, int64_t first, int64_t last) {                             \
        const size_t step = FEW * p->row_bytes, ahead = (NEAR_ENOUGH + step - 1) / step * step;                        \
        for (; first < last; first += FEW) {                                                                           \
            const int64_t from = first + FEW <= p->m ? first : p->m - FEW;                                             \
            const __m256 out = name##_rows(p, (size_t)from * p->row_bytes, ahead);                                     \
            store_one(out, (int)(first - from), oe_sb_out(p, 0) + from);                                               \
        }                                                                                                              \
    }

DEFINE_MULTIPLY_ONE(q4k, oe_act256, OE_Q4_K_BYTES)
DEFINE_MULTIPLY_ONE(q6k, oe_act256, OE_Q6_K_BYTES)
DEFINE_MULTIPLY_ONE(q40, oe_act32, OE_Q4_0_BYTES)
DEFINE_MULTIPLY_ONE(q80, oe_act32, OE_Q8_0_BYTES)
DEFINE_MULTIPLY_ONE(mxfp4, oe_act32, OE_MXFP4_BYTES)

#define ONE(name) name##_multiply_one
const oe_sb_kernel KERNELS[OE_SB_TYPES] = OE_SB_KERNELS(ONE);

#else
const oe_sb_kernel KERNELS[OE_SB_TYPES];
#endif
