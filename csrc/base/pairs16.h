/* Vectors of 16 pairs of whole numbers of 16 bits, beside those of simd16.h. Their products are added up in 32 bits:
 * exactly, so that their order does not matter. */
#ifndef OE_PAIRS16_H
#define OE_PAIRS16_H

#include "base/simd16.h"

#define OE_PAIRED (2 * OE_LANES) /* numbers in a vector */

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

typedef __m512i pairs;
typedef __m512i wholes; /* 16 whole numbers of 32 bits */

INLINE pairs pairs_load(const int16_t *p) { return _mm512_loadu_si512(p); }
INLINE void pairs_store(int16_t *p, pairs x) { _mm512_storeu_si512(p, x); }
INLINE lanes pairs_as_lanes(pairs x) { return _mm512_castsi512_ps(x); }

/* The pair at p, 16 times. */
INLINE pairs pairs_set(const int16_t *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* The lower halves of the numbers in a and b, in pairs of one of each. */
INLINE pairs pairs_of_halves(lanes a, lanes b) {
    const __m512i lower =
        _mm512_set_epi16(62, 30, 60, 28, 58, 26, 56, 24, 54, 22, 52, 20, 50, 18, 48, 16, 46, 14, 44, 12, 42, 10, 40, 8,
                         38, 6, 36, 4, 34, 2, 32, 0);
    return _mm512_permutex2var_epi16(_mm512_castps_si512(a), lower, _mm512_castps_si512(b));
}

/* Numbers without their highest bits, and the larger ones of such. */
INLINE pairs pairs_magnitude(pairs x) { return _mm512_and_si512(x, _mm512_set1_epi16(INT16_MAX)); }
INLINE pairs pairs_larger(pairs a, pairs b) { return _mm512_max_epi16(a, b); }

INLINE pairs larger_halves(pairs a, pairs b) {
    return pairs_larger(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
}

INLINE pairs larger_quarters(pairs a, pairs b) {
    return pairs_larger(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

INLINE pairs larger_column(const pairs *x) {
    return larger_quarters(larger_halves(x[0], x[4]), larger_halves(x[8], x[12]));
}

INLINE pairs larger_eighths(pairs a, pairs b) {
    return pairs_larger(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* to[i]: the largest number of x[i], which are magnitudes. */
INLINE void pairs_largest(const pairs *x, uint32_t *to) {
    const __m512 low = _mm512_castsi512_ps(larger_eighths(larger_column(x), larger_column(x + 1)));
    const __m512 high = _mm512_castsi512_ps(larger_eighths(larger_column(x + 2), larger_column(x + 3)));
    const pairs most = pairs_larger(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                                    _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xdd)));
    const __m512i other = _mm512_srli_epi32(most, 16);
    _mm512_storeu_si512(to, _mm512_and_si512(pairs_larger(most, other), _mm512_set1_epi32(0xffff)));
}

INLINE wholes wholes_zero(void) { return _mm512_setzero_si512(); }

/* Adds the two products of each pair. */
INLINE wholes wholes_add_products(wholes sum, pairs a, pairs b) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); /* around its builtin GCC 12 copies the sum */
    return sum;
}

INLINE lanes lanes_from_wholes(wholes x) { return _mm512_cvtepi32_ps(x); }
INLINE int32_t wholes_sum(wholes x) { return _mm512_reduce_add_epi32(x); }

INLINE wholes wholes_halves(wholes a, wholes b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
}

INLINE wholes wholes_quarters(wholes a, wholes b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

INLINE wholes wholes_column(const wholes *x) {
    return wholes_quarters(wholes_halves(x[0], x[4]), wholes_halves(x[8], x[12]));
}

INLINE wholes wholes_pairs(wholes a, wholes b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* 16 sums at once, as floats (see lanes_sums). */
INLINE lanes wholes_sums(const wholes *x) {
    const __m512 low = _mm512_castsi512_ps(wholes_pairs(wholes_column(x), wholes_column(x + 1)));
    const __m512 high = _mm512_castsi512_ps(wholes_pairs(wholes_column(x + 2), wholes_column(x + 3)));
    return lanes_from_wholes(_mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                                              _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xdd))));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

typedef struct pairs {
    __m256i low, high;
} pairs;
typedef pairs wholes;

INLINE pairs pairs_of(__m256i low, __m256i high) { return (pairs){low, high}; }

INLINE pairs pairs_load(const int16_t *p) {
    const __m256i *at = (const void *)p;
    return pairs_of(_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1));
}

INLINE void pairs_store(int16_t *p, pairs x) {
    __m256i *at = (void *)p;
    _mm256_storeu_si256(at, x.low);
    _mm256_storeu_si256(at + 1, x.high);
}

INLINE lanes pairs_as_lanes(pairs x) { return lanes_of(_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)); }

INLINE pairs pairs_set(const int16_t *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return pairs_of(_mm256_set1_epi32(pair), _mm256_set1_epi32(pair));
}

INLINE __m256i half_pairs(__m256 a, __m256 b) {
    return _mm256_blend_epi16(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(b), 16), 0xaa);
}

INLINE pairs pairs_of_halves(lanes a, lanes b) {
    return pairs_of(half_pairs(a.low, b.low), half_pairs(a.high, b.high));
}

INLINE pairs pairs_magnitude(pairs x) {
    const __m256i all = _mm256_set1_epi16(INT16_MAX);
    return pairs_of(_mm256_and_si256(x.low, all), _mm256_and_si256(x.high, all));
}

INLINE pairs pairs_larger(pairs a, pairs b) {
    return pairs_of(_mm256_max_epi16(a.low, b.low), _mm256_max_epi16(a.high, b.high));
}

INLINE void pairs_largest(const pairs *x, uint32_t *to) {
    const __m128i all = _mm_set1_epi16(INT16_MAX); /* the instruction finds the smallest */
    for (int i = 0; i < OE_LANES; i++) {
        const __m256i most = _mm256_max_epi16(x[i].low, x[i].high);
        const __m128i eight = _mm_max_epi16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        to[i] = INT16_MAX - (uint32_t)_mm_extract_epi16(_mm_minpos_epu16(_mm_sub_epi16(all, eight)), 0);
    }
}

INLINE wholes wholes_zero(void) { return pairs_of(_mm256_setzero_si256(), _mm256_setzero_si256()); }

INLINE wholes wholes_add_products(wholes sum, pairs a, pairs b) {
    return pairs_of(_mm256_add_epi32(sum.low, _mm256_madd_epi16(a.low, b.low)),
                    _mm256_add_epi32(sum.high, _mm256_madd_epi16(a.high, b.high)));
}

INLINE lanes lanes_from_wholes(wholes x) { return lanes_of(_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)); }

INLINE int32_t wholes_sum(wholes x) {
    const __m256i eight = _mm256_add_epi32(x.low, x.high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* Of x[0] to x[3]: what each half of a register has of their sums. */
INLINE __m256i sums_of_4(const wholes *x) {
    const __m256i a = _mm256_add_epi32(x[0].low, x[0].high), b = _mm256_add_epi32(x[1].low, x[1].high);
    const __m256i c = _mm256_add_epi32(x[2].low, x[2].high), d = _mm256_add_epi32(x[3].low, x[3].high);
    return _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
}

INLINE __m256i sums_of_8(const wholes *x) {
    const __m256i low = sums_of_4(x), high = sums_of_4(x + 4);
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

INLINE lanes wholes_sums(const wholes *x) { return lanes_from_wholes(pairs_of(sums_of_8(x), sums_of_8(x + 8))); }

#elif defined(OE_NEON)

#include "base/pairs16_neon.h"

#else

typedef struct pairs {
    int16_t at[OE_PAIRED];
} pairs;
typedef struct wholes {
    uint32_t at[OE_LANES]; /* wraps around, as vectors do */
} wholes;

INLINE pairs pairs_load(const int16_t *p) {
    pairs x;
    memcpy(x.at, p, sizeof x.at);
    return x;
}

INLINE void pairs_store(int16_t *p, pairs x) { memcpy(p, x.at, sizeof x.at); }

INLINE pairs pairs_set(const int16_t *p) {
    pairs x;
    for (int i = 0; i < OE_PAIRED; i++) {
        x.at[i] = p[i % 2];
    }
    return x;
}

INLINE lanes pairs_as_lanes(pairs x) {
    lanes out;
    memcpy(&out, &x, sizeof out);
    return out;
}

INLINE pairs pairs_magnitude(pairs x) {
    for (int i = 0; i < OE_PAIRED; i++) {
        x.at[i] &= INT16_MAX;
    }
    return x;
}

INLINE pairs pairs_larger(pairs a, pairs b) {
    for (int i = 0; i < OE_PAIRED; i++) {
        a.at[i] = a.at[i] > b.at[i] ? a.at[i] : b.at[i];
    }
    return a;
}

INLINE void pairs_largest(const pairs *x, uint32_t *to) {
    for (int i = 0; i < OE_LANES; i++) {
        int16_t most = 0;
        for (int j = 0; j < OE_PAIRED; j++) {
            most = x[i].at[j] > most ? x[i].at[j] : most;
        }
        to[i] = (uint32_t)most;
    }
}

INLINE pairs pairs_of_halves(lanes a, lanes b) {
    pairs out;
    for (int i = 0; i < OE_LANES; i++) {
        out.at[2 * i] = (int16_t)oe_float_bits(a.at[i]);
        out.at[2 * i + 1] = (int16_t)oe_float_bits(b.at[i]);
    }
    return out;
}

INLINE wholes wholes_zero(void) { return (wholes){{0}}; }

INLINE wholes wholes_add_products(wholes sum, pairs a, pairs b) {
    for (int i = 0; i < OE_LANES; i++) {
        sum.at[i] += (uint32_t)(a.at[2 * i] * b.at[2 * i]) + (uint32_t)(a.at[2 * i + 1] * b.at[2 * i + 1]);
    }
    return sum;
}

INLINE lanes lanes_from_wholes(wholes x) {
    lanes out;
    for (int i = 0; i < OE_LANES; i++) {
        out.at[i] = (float)(int32_t)x.at[i];
    }
    return out;
}

INLINE int32_t wholes_sum(wholes x) {
    uint32_t sum = 0;
    for (int i = 0; i < OE_LANES; i++) {
        sum += x.at[i];
    }
    return (int32_t)sum;
}

INLINE lanes wholes_sums(const wholes *x) {
    lanes out;
    for (int i = 0; i < OE_LANES; i++) {
        out.at[i] = (float)wholes_sum(x[i]);
    }
    return out;
}

#endif

/* a * by and b * by, rounded to the nearest whole numbers, which must be below 2^15: adding 1.5 * 2^23 leaves them in
 * the lower halves. */
INLINE pairs pairs_round(lanes a, lanes b, lanes by) {
    const lanes magic = lanes_set(12582912.0f);
    return pairs_of_halves(lanes_fma(a, by, magic), lanes_fma(b, by, magic));
}

#endif
