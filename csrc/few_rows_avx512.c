/* 16 weight rows at a time, one in each 32-bit lane: VPDPBUSD adds 4 products of codes (unsigned) and activations
 * (signed, the same 4 in all lanes) to each lane. Compiled with AVX-512 switched on; called where the CPU has it. */
#include "few_rows.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#include <string.h>

#define LANES 16
#define TILE 8 /* rows of activations at a time: 8 sums, 8 registers of codes and their temporaries fit 32 registers */
#define INLINE static inline __attribute__((always_inline))

typedef struct window { /* 16 weight rows at one block */
    const uint8_t *at;
    size_t stride;
} window;

INLINE __m512i byte_set(int value) { return _mm512_set1_epi8((char)value); }

INLINE __m512i same4(const void *bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm512_set1_epi32(word);
}

/* 16 bytes each of the rows i, i + 4, i + 8, i + 12. */
INLINE __m512i load_column(window w, size_t offset, size_t i) {
    const uint8_t *p = w.at + offset + i * w.stride;
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
    x = _mm512_mask_broadcast_i32x4(x, 0x00f0, _mm_loadu_si128((const __m128i *)(p + 4 * w.stride)));
    x = _mm512_mask_broadcast_i32x4(x, 0x0f00, _mm_loadu_si128((const __m128i *)(p + 8 * w.stride)));
    return _mm512_mask_broadcast_i32x4(x, 0xf000, _mm_loadu_si128((const __m128i *)(p + 12 * w.stride)));
}

/* 16 bytes at `offset` of each row, turned: lane r of word[j] holds bytes 4j .. 4j + 3 of row r. */
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

/* The 16 rows after these are next. They lie side by side in memory, so each block fetches its share of them in order.
 */
INLINE void prefetch_next(const oe_few_product *p, window w, size_t block_bytes) {
    const size_t here = (size_t)(w.at - p->weights), row = here % p->row_bytes;
    const size_t from = here - row + LANES * p->row_bytes + LANES * row;
    if (from + LANES * block_bytes <= (size_t)p->m * p->row_bytes) {
        for (size_t i = 0; i < LANES * block_bytes; i += 64) {
            _mm_prefetch((const char *)(p->weights + from + i), _MM_HINT_T0);
        }
    }
}

/* sum[n] += scale * (codes times the n-th row's activations from q on) / 2^shift, over `words` words of 4. */
INLINE void add_scaled(const int n_tile, const int words, const __m512i *codes, const int shift, __m512i scale,
                       const oe_act256 *act, int from, __m512i *sum) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        __m512i dot = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < words; i++) {
            dot = _mm512_dpbusd_epi32(dot, codes[i], same4(act[n].q + from + 4 * i));
        }
        dot = shift ? _mm512_srai_epi32(dot, (unsigned)shift) : dot;
        sum[n] = _mm512_add_epi32(sum[n], _mm512_mullo_epi32(dot, scale));
    }
}

/* Pairs of 16-bit factors times pairs of sums of activations. */
INLINE __m512i times_sums(const int pairs, const __m512i *factor, const int16_t *sums) {
    __m512i total = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < pairs; j++) {
        total = _mm512_dpwssd_epi32(total, factor[j], same4(sums + 2 * j));
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

INLINE void q4k_block(const int n_tile, window w, const oe_act256 *act, __m512 *out) {
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
            add_scaled(n_tile, 8, codes, in_place ? 4 : 0, scale, act, 64 * j + 32 * half, sum);
        }
    }
    for (int n = 0; n < n_tile; n++) {
        const __m512 least = _mm512_cvtepi32_ps(times_sums(4, head.mins, act[n].sum32));
        const __m512 most = _mm512_cvtepi32_ps(sum[n]);
        const __m512 x = _mm512_sub_ps(_mm512_mul_ps(head.d, most), _mm512_mul_ps(head.dmin, least));
        out[n] = _mm512_add_ps(out[n], _mm512_mul_ps(x, _mm512_set1_ps(act[n].d)));
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

INLINE void q6k_block(const int n_tile, window w, const oe_act256 *act, __m512 *out) {
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
            add_scaled(n_tile, 4, codes, 0, signed_byte_of(s.scale[part / 4], part % 4), act, 16 * part, sum);
        }
    }
    for (int n = 0; n < n_tile; n++) {
        const __m512i whole = _mm512_sub_epi32(sum[n], times_sums(8, s.pair, act[n].sum16));
        const __m512 x = _mm512_mul_ps(s.d, _mm512_cvtepi32_ps(whole));
        out[n] = _mm512_add_ps(out[n], _mm512_mul_ps(x, _mm512_set1_ps(act[n].d)));
    }
}

/* -- Q4_0 and Q8_0: f16 d and 32 codes; weights are d * (code - 8) and d * code ------------------------------------ */

/* The f16 at the start of each row's block. */
INLINE __m512 read_half(window w) {
    __m512i x[4];
    load_words(w, 0, x); /* the words that nobody uses cost nothing: the compiler drops them */
    return half_low(x[0]);
}

/* out[n] += d * act.d * (start + codes times activations). */
INLINE void add_simple(const int n_tile, const __m512i *codes, __m512 d, const int eight, const oe_act32 *act,
                       __m512 *out) {
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        __m512i dot = _mm512_set1_epi32(eight ? act[n].minus8 : act[n].minus128);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            dot = _mm512_dpbusd_epi32(dot, codes[i], same4(act[n].q + 4 * i));
        }
        const __m512 x = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot));
        out[n] = _mm512_add_ps(out[n], _mm512_mul_ps(x, _mm512_set1_ps(act[n].d)));
    }
}

INLINE void q40_block(const int n_tile, window w, const oe_act32 *act, __m512 *out) {
    __m512i words[4], codes[8];
    load_words(w, 2, words);
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(words[i], 0, 0x0f);
        codes[4 + i] = low_bits(words[i], 4, 0x0f);
    }
    add_simple(n_tile, codes, read_half(w), 1, act, out);
}

INLINE void q80_block(const int n_tile, window w, const oe_act32 *act, __m512 *out) {
    __m512i codes[8];
    load_words(w, 2, codes);
    load_words(w, 18, codes + 4);
    for (int i = 0; i < 8; i++) {
        codes[i] = _mm512_xor_si512(codes[i], byte_set(0x80)); /* code + 128, unsigned */
    }
    add_simple(n_tile, codes, read_half(w), 0, act, out);
}

/* -- all rows of activations, in tiles of equal size --------------------------------------------------------------- */

INLINE void store(const int n_tile, const __m512 *out, __mmask16 lanes, float *to, int64_t m) {
    for (int n = 0; n < n_tile; n++) {
        _mm512_mask_storeu_ps(to + n * m, lanes, out[n]);
    }
}

/* Defines name(p, first, last) from name_block, which adds the products of one block of 16 weight rows to out[n]. The
 * last 16 rows may overlap those before them: only results from `first` on are stored. */
#define DEFINE_MULTIPLY(name, act_t, block_bytes)                                                                     \
    INLINE void name##_tile(const int n_tile, const oe_few_product *p, int64_t row, int64_t from, __mmask16 lanes) {  \
        window w = {p->weights + (size_t)from * p->row_bytes, p->row_bytes};                                          \
        const act_t *act = (const act_t *)p->acts + row;                                                              \
        __m512 out[TILE];                                                                                             \
        for (int n = 0; n < n_tile; n++) {                                                                            \
            out[n] = _mm512_setzero_ps();                                                                             \
        }                                                                                                             \
        for (int64_t b = 0; b < p->blocks; b++, act += p->rows, w.at += block_bytes) {                                \
            if (row == 0) {                                                                                           \
                prefetch_next(p, w, block_bytes);                                                                     \
            }                                                                                                         \
            name##_block(n_tile, w, act, out);                                                                        \
        }                                                                                                             \
        store(n_tile, out, lanes, p->out + row * p->m + from, p->m);                                                  \
    }                                                                                                                 \
    static void name##_any_tile(int n, const oe_few_product *p, int64_t row, int64_t from, __mmask16 lanes) {         \
        switch (n) {                                                                                                  \
        case 1: name##_tile(1, p, row, from, lanes); break;                                                           \
        case 2: name##_tile(2, p, row, from, lanes); break;                                                           \
        case 3: name##_tile(3, p, row, from, lanes); break;                                                           \
        case 4: name##_tile(4, p, row, from, lanes); break;                                                           \
        case 5: name##_tile(5, p, row, from, lanes); break;                                                           \
        case 6: name##_tile(6, p, row, from, lanes); break;                                                           \
        case 7: name##_tile(7, p, row, from, lanes); break;                                                           \
        default: name##_tile(8, p, row, from, lanes); break;                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    static void name##_multiply(const oe_few_product *p, int64_t first, int64_t last) {                               \
        multiply(p, first, last, name##_any_tile);                                                                    \
    }

typedef void (*any_tile)(int n, const oe_few_product *p, int64_t row, int64_t from, __mmask16 lanes);

INLINE void multiply(const oe_few_product *p, int64_t first, int64_t last, any_tile tile) {
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

DEFINE_MULTIPLY(q4k, oe_act256, 144)
DEFINE_MULTIPLY(q6k, oe_act256, 210)
DEFINE_MULTIPLY(q40, oe_act32, 18)
DEFINE_MULTIPLY(q80, oe_act32, 34)

const oe_few_kernel oe_few_avx512[OE_FEW_TYPES] =
    OE_FEW_KERNELS(q4k_multiply, q6k_multiply, q40_multiply, q80_multiply);

#else
const oe_few_kernel oe_few_avx512[OE_FEW_TYPES];
#endif
