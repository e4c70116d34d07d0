/* Vectors of 16 floats: one AVX-512 register, two AVX2 registers, four NEON registers (OE_NEON), or an array, by the
 * flags of the including file. Every operation gives the same bits in all of them. Products are added with one rounding
 * (FMA) everywhere. */
#ifndef OE_SIMD16_H
#define OE_SIMD16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/f16.h"
#include "base/float_bits.h"

#define OE_LANES 16
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

#if defined(__AVX2__)
#include <immintrin.h>

/* The sum of 8: lanes 4 apart are joined first, then those 2 and 1 apart. */
INLINE float half_sum(__m256 x) {
    __m128 part = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    part = _mm_add_ps(part, _mm_movehl_ps(part, part));
    return _mm_cvtss_f32(_mm_add_ss(part, _mm_movehdup_ps(part)));
}
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

typedef __m512 lanes;

INLINE lanes lanes_set(float x) { return _mm512_set1_ps(x); }
INLINE lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE lanes lanes_set_4(const float *p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); } /* four times these */
INLINE void lanes_store(float *p, lanes x) { _mm512_storeu_ps(p, x); }
INLINE lanes lanes_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
INLINE lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
INLINE lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
INLINE lanes lanes_div(lanes a, lanes b) { return _mm512_div_ps(a, b); }
INLINE lanes lanes_sqrt(lanes x) { return _mm512_sqrt_ps(x); }
INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }

/* a > b ? a : b, and so b where either is NaN. */
INLINE lanes lanes_max(lanes a, lanes b) { return _mm512_max_ps(a, b); }

/* y, but 0 where x < limit. */
INLINE lanes lanes_unless_below(lanes x, float limit, lanes y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), y);
}

/* |x| with the sign of y. */
INLINE lanes lanes_signed_as(lanes x, lanes y) {
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(sign, _mm512_castps_si512(y), _mm512_castps_si512(x), 0xca));
}

/* x * 2^n by its exponent: n is at the low end of `shifted`, bits of 1.5 * 2^23 + n. */
INLINE lanes lanes_raised(lanes x, lanes shifted) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), n));
}

INLINE lanes lanes_from_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE lanes lanes_set_f16(uint16_t x) { return _mm512_cvtph_ps(_mm256_set1_epi16((int16_t)x)); }

INLINE lanes lanes_from_bf16(const void *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* The sum of all: lanes 8 apart are joined first, then those 4, 2 and 1 apart. */
INLINE float lanes_sum(lanes x) {
    const __m256d high = _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1);
    return half_sum(_mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(high)));
}

/* 16 sums at once, with the same additions: to[i] = lanes_sum(x[i]). */
INLINE lanes lanes_halves(lanes a, lanes b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

INLINE lanes lanes_quarters(lanes a, lanes b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* Lanes 4 * j .. 4 * j + 3 add up to the sum of x[4 * j]. */
INLINE lanes lanes_column(const lanes *x) {
    return lanes_quarters(lanes_halves(x[0], x[4]), lanes_halves(x[8], x[12]));
}

INLINE lanes lanes_pairs(lanes a, lanes b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

INLINE void lanes_sums(const lanes *x, float *to) {
    const lanes low = lanes_pairs(lanes_column(x), lanes_column(x + 1));
    const lanes high = lanes_pairs(lanes_column(x + 2), lanes_column(x + 3));
    lanes_store(to, _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd)));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

typedef struct lanes {
    __m256 low, high;
} lanes;

INLINE lanes lanes_of(__m256 low, __m256 high) { return (lanes){low, high}; }

INLINE lanes lanes_set(float x) { return lanes_of(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE lanes lanes_load(const float *p) { return lanes_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }

INLINE lanes lanes_set_4(const float *p) {
    const __m256 twice = _mm256_broadcast_ps((const __m128 *)p);
    return lanes_of(twice, twice);
}

INLINE void lanes_store(float *p, lanes x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}

INLINE lanes lanes_add(lanes a, lanes b) {
    return lanes_of(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high));
}
INLINE lanes lanes_sub(lanes a, lanes b) {
    return lanes_of(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high));
}
INLINE lanes lanes_mul(lanes a, lanes b) {
    return lanes_of(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high));
}
INLINE lanes lanes_div(lanes a, lanes b) {
    return lanes_of(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high));
}
INLINE lanes lanes_sqrt(lanes x) { return lanes_of(_mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high)); }
INLINE lanes lanes_fma(lanes a, lanes b, lanes c) {
    return lanes_of(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
INLINE lanes lanes_max(lanes a, lanes b) {
    return lanes_of(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high));
}

INLINE lanes lanes_unless_below(lanes x, float limit, lanes y) {
    const __m256 least = _mm256_set1_ps(limit);
    return lanes_of(_mm256_and_ps(_mm256_cmp_ps(x.low, least, _CMP_NLT_UQ), y.low),
                    _mm256_and_ps(_mm256_cmp_ps(x.high, least, _CMP_NLT_UQ), y.high));
}

INLINE lanes lanes_signed_as(lanes x, lanes y) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return lanes_of(_mm256_or_ps(_mm256_andnot_ps(sign, x.low), _mm256_and_ps(sign, y.low)),
                    _mm256_or_ps(_mm256_andnot_ps(sign, x.high), _mm256_and_ps(sign, y.high)));
}

INLINE __m256 half_raised(__m256 x, __m256 shifted) {
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), n));
}

INLINE lanes lanes_raised(lanes x, lanes shifted) {
    return lanes_of(half_raised(x.low, shifted.low), half_raised(x.high, shifted.high));
}

INLINE lanes lanes_from_f16(const void *p) {
    const __m128i *at = p;
    return lanes_of(_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1)));
}

INLINE lanes lanes_set_f16(uint16_t x) {
    const __m256 half = _mm256_cvtph_ps(_mm_set1_epi16((int16_t)x));
    return lanes_of(half, half);
}

INLINE __m256 half_from_bf16(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

INLINE lanes lanes_from_bf16(const void *p) {
    const __m128i *at = p;
    return lanes_of(half_from_bf16(_mm_loadu_si128(at)), half_from_bf16(_mm_loadu_si128(at + 1)));
}

INLINE float lanes_sum(lanes x) { return half_sum(_mm256_add_ps(x.low, x.high)); }

#elif defined(OE_NEON)

#include "base/simd16_neon.h"

#else

typedef struct lanes {
    float at[OE_LANES];
} lanes;

#define EACH_LANE(expression)                                                                                          \
    lanes out;                                                                                                         \
    for (int i = 0; i < OE_LANES; i++) {                                                                               \
        out.at[i] = (expression);                                                                                      \
    }                                                                                                                  \
    return out

INLINE lanes lanes_set(float x) { EACH_LANE(x); }
INLINE lanes lanes_load(const float *p) { EACH_LANE(p[i]); }
INLINE lanes lanes_set_4(const float *p) { EACH_LANE(p[i % 4]); }
INLINE void lanes_store(float *p, lanes x) { memcpy(p, x.at, sizeof x.at); }
INLINE lanes lanes_add(lanes a, lanes b) { EACH_LANE(a.at[i] + b.at[i]); }
INLINE lanes lanes_sub(lanes a, lanes b) { EACH_LANE(a.at[i] - b.at[i]); }
INLINE lanes lanes_mul(lanes a, lanes b) { EACH_LANE(a.at[i] * b.at[i]); }
INLINE lanes lanes_div(lanes a, lanes b) { EACH_LANE(a.at[i] / b.at[i]); }
INLINE lanes lanes_sqrt(lanes x) { EACH_LANE(sqrtf(x.at[i])); }
INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { EACH_LANE(fmaf(a.at[i], b.at[i], c.at[i])); }
INLINE lanes lanes_max(lanes a, lanes b) { EACH_LANE(a.at[i] > b.at[i] ? a.at[i] : b.at[i]); }
INLINE lanes lanes_unless_below(lanes x, float limit, lanes y) { EACH_LANE(x.at[i] < limit ? 0.0f : y.at[i]); }
INLINE lanes lanes_signed_as(lanes x, lanes y) { EACH_LANE(copysignf(x.at[i], y.at[i])); }
INLINE lanes lanes_raised(lanes x, lanes shifted) {
    EACH_LANE(oe_float_of_bits(oe_float_bits(x.at[i]) + (oe_float_bits(shifted.at[i]) << 23)));
}

INLINE lanes lanes_from_f16(const void *p) {
    uint16_t x[OE_LANES];
    memcpy(x, p, sizeof x);
    EACH_LANE(oe_f16_to_f32(x[i]));
}

INLINE lanes lanes_set_f16(uint16_t x) { return lanes_set(oe_f16_to_f32(x)); }

INLINE lanes lanes_from_bf16(const void *p) {
    uint16_t x[OE_LANES];
    memcpy(x, p, sizeof x);
    EACH_LANE(oe_float_of_bits((uint32_t)x[i] << 16));
}

INLINE float lanes_sum(lanes x) {
    float part[OE_LANES];
    lanes_store(part, x);
    for (int width = OE_LANES / 2; width; width /= 2) {
        for (int i = 0; i < width; i++) {
            part[i] += part[i + width];
        }
    }
    return part[0];
}

#endif

/* The largest of all: lanes 8 apart are compared first, then those 4, 2 and 1 apart. Of NaN, anything. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
INLINE float lanes_largest(lanes x) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), high);
#else
    const __m256 eight = _mm256_max_ps(x.low, x.high);
#endif
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
#elif !defined(OE_NEON)
INLINE float lanes_largest(lanes x) {
    for (int width = OE_LANES / 2; width; width /= 2) {
        for (int i = 0; i < width; i++) {
            x.at[i] = x.at[i] > x.at[i + width] ? x.at[i] : x.at[i + width];
        }
    }
    return x.at[0];
}
#endif

/* exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2, and exp(r) by its Taylor series to r^7 (remainder 6e-9). Returns
 * (exp(r) - 1) / r, and r and 2^n by the way. */
INLINE lanes lanes_exp_parts(lanes x, lanes *r_out, lanes *power) {
    const lanes magic = lanes_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number in the low bits */
    const lanes shifted = lanes_fma(x, lanes_set(1.44269504f), magic);
    const lanes n = lanes_sub(shifted, magic);
    /* ln 2 in two parts; the first times n is exact. */
    const lanes r = lanes_fma(n, lanes_set(2.12194440e-4f), lanes_fma(n, lanes_set(-0.693359375f), x));
    lanes p = lanes_set(1.0f / 5040.0f);
    p = lanes_fma(p, r, lanes_set(1.0f / 720.0f));
    p = lanes_fma(p, r, lanes_set(1.0f / 120.0f));
    p = lanes_fma(p, r, lanes_set(1.0f / 24.0f));
    p = lanes_fma(p, r, lanes_set(1.0f / 6.0f));
    p = lanes_fma(p, r, lanes_set(0.5f));
    p = lanes_fma(p, r, lanes_set(1.0f));
    *r_out = r;
    *power = lanes_raised(lanes_set(1.0f), shifted);
    return p;
}

/* exp(x) for x <= 0, exactly 0 below -87; NaN for NaN. */
INLINE lanes lanes_exp(lanes x) {
    lanes r, power;
    const lanes p = lanes_exp_parts(x, &r, &power);
    return lanes_unless_below(x, -87.0f, lanes_mul(lanes_fma(p, r, lanes_set(1.0f)), power));
}

#define OE_LOG2E 1.44269504f

/* 2^x for x <= 0, to 1.6e-7 of its value; exactly 0 below -125, 1 for 0, NaN for NaN. 2^r, |r| <= 0.5, is a polynomial
 * with the smallest largest error, and whole powers are added to its exponent. */
INLINE lanes lanes_exp2(lanes x) {
    const lanes magic = lanes_set(12582912.0f); /* as in lanes_exp_parts */
    const lanes shifted = lanes_add(x, magic), r = lanes_sub(x, lanes_sub(shifted, magic));
    lanes p = lanes_set(1.3264727e-3f);
    p = lanes_fma(p, r, lanes_set(9.671513e-3f));
    p = lanes_fma(p, r, lanes_set(5.5507336e-2f));
    p = lanes_fma(p, r, lanes_set(0.24022242f));
    p = lanes_fma(p, r, lanes_set(0.693147f));
    p = lanes_fma(p, r, lanes_set(1.0f));
    return lanes_unless_below(x, -125.0f, lanes_raised(p, shifted));
}

/* -m / (2 + m) for m = exp(-2 |x|) - 1, with the sign of x; NaN for NaN. m is 2^n - 1 + 2^n * (exp(r) - 1), so that
 * small numbers keep their digits (n is 0, r is -2 |x|): the result is up to 3e-7 of its size away. */
INLINE lanes lanes_tanh(lanes x) {
    lanes r, power;
    const lanes twice = lanes_mul(lanes_signed_as(x, lanes_set(1.0f)), lanes_set(-2.0f));
    /* From -40 on m is -1. Of a limit and NaN, lanes_max gives its second argument. */
    const lanes p = lanes_exp_parts(lanes_max(lanes_set(-40.0f), twice), &r, &power);
    const lanes m = lanes_fma(lanes_mul(p, r), power, lanes_sub(power, lanes_set(1.0f)));
    return lanes_signed_as(lanes_div(m, lanes_add(lanes_set(2.0f), m)), x);
}

#endif
