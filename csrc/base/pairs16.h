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
    const __m512i high = _mm512_slli_epi32(_mm512_castps_si512(b), 16);
    return _mm512_mask_mov_epi16(_mm512_castps_si512(a), 0xaaaaaaaa, high);
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

INLINE int32_t wholes_sum(wholes x) {
    uint32_t sum = 0;
    for (int i = 0; i < OE_LANES; i++) {
        sum += x.at[i];
    }
    return (int32_t)sum;
}

#endif

/* a * by and b * by, rounded to the nearest whole numbers, which must be below 2^15: adding 1.5 * 2^23 leaves them in
 * the lower halves. */
INLINE pairs pairs_round(lanes a, lanes b, lanes by) {
    const lanes magic = lanes_set(12582912.0f);
    return pairs_of_halves(lanes_fma(a, by, magic), lanes_fma(b, by, magic));
}

#endif
