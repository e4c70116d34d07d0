/* 8 weight rows at a time, one in each 32-bit lane: VPMADDUBSW multiplies codes (unsigned) with activations (signed,
 * the same 4 in all lanes) and adds neighbours in 16 bits. Compiled with AVX2 switched on; called where the CPU has it.
 */
#include "few_rows.h"

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#include <string.h>

#define LANES 8
#define TILE 4 /* rows of activations at a time: their sums and 8 registers of codes leave 4 of 16 registers */
#define INLINE static inline __attribute__((always_inline))

typedef struct window { /* 8 weight rows at one block */
    const uint8_t *at;
    size_t stride;
} window;

INLINE __m256i same4(const void *bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

/* 16 bytes each of the rows i and i + 4. */
INLINE __m256i load_column(window w, size_t offset, size_t i) {
    const uint8_t *p = w.at + offset + i * w.stride;
    const __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(p + 4 * w.stride)), 1);
}

/* 16 bytes at `offset` of each row, turned: lane r of word[j] holds bytes 4j .. 4j + 3 of row r. */
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

/* sum[n] += scale (in both halves of each lane) * (codes times the n-th row's activations). `words` sums of products
 * of neighbours must fit 16 bits: 8 * 2 * 15 * 127 do, and 2 * 2 * 63 * 127. */
INLINE void add_scaled(const int n_tile, const int words, const __m256i *codes, __m256i scale, const oe_act256 *act,
                       int from, __m256i *sum) {
    for (int n = 0; n < n_tile; n++) {
        __m256i dot = _mm256_maddubs_epi16(codes[0], same4(act[OE_QUAD * n].q + from));
#pragma GCC unroll 8
        for (int i = 1; i < words; i++) {
            dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(codes[i], same4(act[OE_QUAD * n].q + from + 4 * i)));
        }
        sum[n] = _mm256_add_epi32(sum[n], _mm256_madd_epi16(dot, scale));
    }
}

/* Pairs of 16-bit factors times pairs of sums of activations. */
INLINE __m256i times_sums(const int pairs, const __m256i *factor, const int16_t *sums) {
    __m256i total = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = 0; j < pairs; j++) {
        total = _mm256_add_epi32(total, _mm256_madd_epi16(factor[j], same4(sums + 2 * j)));
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

INLINE void q4k_block(const int n_tile, window w, const oe_act256 *act, __m256 *out) {
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
            add_scaled(n_tile, 8, codes, scale, act, 64 * j + 32 * half, sum);
        }
    }
    for (int n = 0; n < n_tile; n++) {
        const __m256 most = _mm256_cvtepi32_ps(sum[n]);
        const __m256 least = _mm256_cvtepi32_ps(times_sums(4, head.mins, act[OE_QUAD * n].sum32));
        const __m256 x = _mm256_sub_ps(_mm256_mul_ps(head.d, most), _mm256_mul_ps(head.dmin, least));
        out[n] = _mm256_add_ps(out[n], _mm256_mul_ps(x, _mm256_set1_ps(act[OE_QUAD * n].d)));
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

INLINE void q6k_block(const int n_tile, window w, const oe_act256 *act, __m256 *out) {
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
            add_scaled(n_tile, 2, codes, scale, act, 16 * part, sum);
            add_scaled(n_tile, 2, codes + 2, scale, act, 16 * part + 8, sum);
        }
    }
    for (int n = 0; n < n_tile; n++) {
        const __m256i whole = _mm256_sub_epi32(sum[n], times_sums(8, s.pair, act[OE_QUAD * n].sum16));
        const __m256 x = _mm256_mul_ps(s.d, _mm256_cvtepi32_ps(whole));
        out[n] = _mm256_add_ps(out[n], _mm256_mul_ps(x, _mm256_set1_ps(act[OE_QUAD * n].d)));
    }
}

/* -- Q4_0 and Q8_0: f16 d and 32 codes; weights are d * (code - 8) and d * code ------------------------------------ */

/* The f16 at the start of each row's block. */
INLINE __m256 read_half(window w) {
    __m256i x[4];
    load_words(w, 0, x); /* the words that nobody uses cost nothing: the compiler drops them */
    return half_low(x[0]);
}

INLINE void add_simple(const oe_act32 *act, __m256i dot, __m256 d, __m256 *out) {
    const __m256 x = _mm256_mul_ps(d, _mm256_cvtepi32_ps(dot));
    *out = _mm256_add_ps(*out, _mm256_mul_ps(x, _mm256_set1_ps(act->d)));
}

INLINE void q40_block(const int n_tile, window w, const oe_act32 *act, __m256 *out) {
    __m256i words[4], codes[8];
    const __m256 d = read_half(w);
    load_words(w, 2, words);
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(words[i], 0, 0x0f);
        codes[4 + i] = low_bits(words[i], 4, 0x0f);
    }
    for (int n = 0; n < n_tile; n++) {
        __m256i dot = _mm256_setzero_si256();
        for (int i = 0; i < 8; i++) { /* 8 * 2 * 15 * 127 fits 16 bits */
            dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(codes[i], same4(act[OE_QUAD * n].q + 4 * i)));
        }
        dot = _mm256_madd_epi16(dot, _mm256_set1_epi16(1));
        add_simple(act + OE_QUAD * n, _mm256_add_epi32(dot, _mm256_set1_epi32(act[OE_QUAD * n].minus8)), d, out + n);
    }
}

INLINE void q80_block(const int n_tile, window w, const oe_act32 *act, __m256 *out) {
    __m256i codes[8];
    const __m256 d = read_half(w);
    load_words(w, 2, codes);
    load_words(w, 18, codes + 4);
    for (int n = 0; n < n_tile; n++) {
        __m256i dot = _mm256_setzero_si256();
        for (int i = 0; i < 8; i++) { /* |code| times the activation with the code's sign: 2 * 128 * 127 fits 16 bits */
            const __m256i q = _mm256_sign_epi8(same4(act[OE_QUAD * n].q + 4 * i), codes[i]);
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[i]), q);
            dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        add_simple(act + OE_QUAD * n, dot, d, out + n);
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

INLINE void mxfp4_block(const int n_tile, window w, const oe_act32 *act, __m256 *out) {
    const __m256i sizes = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12));
    const __m256i signs =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1));
    __m256i words[4], head[4];
    load_words(w, 0, head);
    load_words(w, 1, words);
    const __m256 d = half_power(_mm256_and_si256(head[0], _mm256_set1_epi32(255)));
    for (int n = 0; n < n_tile; n++) {
        __m256i dot = _mm256_setzero_si256();
        for (int i = 0; i < 8; i++) { /* 8 * 2 * 12 * 127 fits 16 bits */
            const __m256i code = low_bits(words[i % 4], 4 * (i / 4), 0x0f);
            const __m256i q = _mm256_sign_epi8(same4(act[OE_QUAD * n].q + 4 * i), _mm256_shuffle_epi8(signs, code));
            dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(_mm256_shuffle_epi8(sizes, code), q));
        }
        add_simple(act + OE_QUAD * n, _mm256_madd_epi16(dot, _mm256_set1_epi16(1)), d, out + n);
    }
}

/* -- all rows of activations, in tiles ----------------------------------------------------------------------------- */

INLINE void store(const int n_tile, const __m256 (*out)[TILE], int skip, const oe_few_product *p, int64_t row,
                  int64_t from) {
    for (int n = 0; n < n_tile; n++) {
        float lane[LANES];
        _mm256_storeu_ps(lane, _mm256_add_ps(_mm256_add_ps(out[0][n], out[1][n]), _mm256_add_ps(out[2][n], out[3][n])));
        memcpy(oe_few_out(p, row + n) + from + skip, lane + skip, (size_t)(LANES - skip) * sizeof *lane);
    }
}

/* Defines name(p, first, last) from name_block, which adds the products of one block of 8 weight rows to out[n]. The
 * last 8 rows may overlap those before them: only results from `first` on are stored. */
#define DEFINE_MULTIPLY(name, act_t, block_bytes)                                                                     \
    INLINE void name##_tile(const int n_tile, const oe_few_product *p, int64_t row, int64_t from, int skip) {         \
        window w = {p->weights + (size_t)from * p->row_bytes, p->row_bytes};                                          \
        const act_t *act = (const act_t *)p->acts + row * OE_QUAD;                                                    \
        __m256 out[OE_QUAD][TILE];                                                                                    \
        memset(out, 0, sizeof out);                                                                                   \
        for (int64_t b = 0; b < p->blocks; b++, w.at += block_bytes) {                                                \
            name##_block(n_tile, w, act + b / OE_QUAD * p->rows * OE_QUAD + b % OE_QUAD, out[b % OE_QUAD]);           \
        }                                                                                                             \
        store(n_tile, out, skip, p, row, from);                                                                       \
    }                                                                                                                 \
    static void name##_multiply(const oe_few_product *p, int64_t first, int64_t last) {                               \
        for (; first < last; first += LANES) {                                                                        \
            const int64_t from = first + LANES <= p->m ? first : p->m - LANES;                                        \
            int64_t row = 0;                                                                                          \
            for (; row + TILE <= p->rows; row += TILE) {                                                              \
                name##_tile(TILE, p, row, from, (int)(first - from));                                                 \
            }                                                                                                         \
            for (; row < p->rows; row++) {                                                                            \
                name##_tile(1, p, row, from, (int)(first - from));                                                    \
            }                                                                                                         \
        }                                                                                                             \
    }

DEFINE_MULTIPLY(q4k, oe_act256, OE_Q4_K_BYTES)
DEFINE_MULTIPLY(q6k, oe_act256, OE_Q6_K_BYTES)
DEFINE_MULTIPLY(q40, oe_act32, OE_Q4_0_BYTES)
DEFINE_MULTIPLY(q80, oe_act32, OE_Q8_0_BYTES)
DEFINE_MULTIPLY(mxfp4, oe_act32, OE_MXFP4_BYTES)

const oe_few_kernel oe_few_avx2[OE_FEW_TYPES] = OE_FEW_KERNELS(OE_FEW_NONE);

#else
const oe_few_kernel oe_few_avx2[OE_FEW_TYPES];
#endif
