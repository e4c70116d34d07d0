/* Floats to whole numbers of 8 bits, for activations.c: with AVX-512, AVX2 or in plain C, by the flags of the including
 * file. All three give the same bits. */
#ifndef OE_SB_ROUND_H
#define OE_SB_ROUND_H

#include "base/simd16.h"
#include "kernels/small_batch/activations.h"

/* -- f16 ----------------------------------------------------------------------------------------------------------- */

/* Rounds to nearest, ties to even, as the instructions do. */
INLINE uint16_t f32_to_f16(float x) {
    const uint32_t bits = oe_float_bits(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (size >= 0x477ff000u) { /* 65520 and more */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (size < 0x38800000u) { /* below the smallest normal number, 2^-14: the sum's last bit is worth 2^-24 */
        return (uint16_t)(sign | (oe_float_bits(oe_float_of_bits(size) + 0.5f) & 0x7ffu));
    }
    return (uint16_t)(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));
}

/* -- rounding ------------------------------------------------------------------------------------------------------
 * largest: the largest |x| of n; NaNs do not count. Floats without a sign are in the order of their bits.
 * round16: the nearest whole number, ties to even, of inverse * x, at most 127 in size; NaN and infinity give 0. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

INLINE float largest(const float *x, int n) {
    __m512i max = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16) {
        const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x + i));
        const __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX));
        max = _mm512_mask_max_epi32(max, _mm512_cmple_epi32_mask(size, _mm512_set1_epi32(0x7f800000)), max, size);
    }
    return oe_float_of_bits((uint32_t)_mm512_reduce_max_epi32(max));
}

/* What is no number, or too large, becomes INT32_MIN, whose last byte is 0. */
INLINE void round16(const float *x, float inverse, int8_t *q) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_set1_ps(inverse), _mm512_loadu_ps(x)));
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(whole));
}

#elif defined(__AVX2__)

INLINE float largest(const float *x, int n) {
    __m256i max = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) {
        const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
        const __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MAX));
        const __m256i no_number = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
        max = _mm256_max_epi32(max, _mm256_andnot_si256(no_number, size));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return oe_float_of_bits((uint32_t)_mm_cvtsi128_si32(half));
}

INLINE __m256i round8(const float *x, float inverse) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_set1_ps(inverse), _mm256_loadu_ps(x)));
    return _mm256_and_si256(whole, _mm256_set1_epi32(255));
}

INLINE void round16(const float *x, float inverse, int8_t *q) {
    const __m256i words = _mm256_packus_epi32(round8(x, inverse), round8(x + 8, inverse));
    const __m256i in_order = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i *)q, _mm_packus_epi16(_mm256_castsi256_si128(in_order),
                                                    _mm256_extracti128_si256(in_order, 1)));
}

#else

INLINE float largest(const float *x, int n) {
    uint32_t max = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t size = oe_float_bits(x[i]) & 0x7fffffffu;
        max = size <= 0x7f800000u && size > max ? size : max;
    }
    return oe_float_of_bits(max);
}

/* Adding 1.5 * 2^23 leaves no bits below 1. */
INLINE void round16(const float *x, float inverse, int8_t *q) {
    for (int i = 0; i < 16; i++) {
        const float y = inverse * x[i];
        q[i] = -128.0f < y && y < 128.0f ? (int8_t)(y + 12582912.0f - 12582912.0f) : 0;
    }
}

#endif

/* -- bf16: rounds to nearest, ties to even; NaN stays NaN ---------------------------------------------------------- */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

INLINE void bf16_of_16(const float *x, uint16_t *to) {
    const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x)), high = _mm512_srli_epi32(bits, 16);
    const __m512i half = _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    const __mmask16 no_number = _mm512_cmp_ps_mask(_mm512_castsi512_ps(bits), _mm512_castsi512_ps(bits), _CMP_UNORD_Q);
    const __m512i near = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __m512i all = _mm512_mask_or_epi32(near, no_number, high, _mm512_set1_epi32(64));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(all));
}

#elif defined(__AVX2__)

INLINE __m256i bf16_of_8(const float *x) {
    const __m256 value = _mm256_loadu_ps(x);
    const __m256i bits = _mm256_castps_si256(value), high = _mm256_srli_epi32(bits, 16);
    const __m256i half = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    const __m256i no_number = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i near = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    return _mm256_blendv_epi8(near, _mm256_or_si256(high, _mm256_set1_epi32(64)), no_number);
}

INLINE void bf16_of_16(const float *x, uint16_t *to) {
    const __m256i words = _mm256_packus_epi32(bf16_of_8(x), bf16_of_8(x + 8));
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(words, 0xd8));
}

#else

INLINE void bf16_of_16(const float *x, uint16_t *to) {
    for (int i = 0; i < 16; i++) {
        const uint32_t bits = oe_float_bits(x[i]), high = bits >> 16;
        const bool number = (bits & 0x7fffffffu) <= 0x7f800000u;
        to[i] = (uint16_t)(number ? (bits + 0x7fffu + (high & 1u)) >> 16 : high | 64u);
    }
}

#endif

/* -- sums ---------------------------------------------------------------------------------------------------------- */

#if defined(__AVX2__)

INLINE __m256i pair_sums(const int8_t *q) { /* sums of 2 bytes, of 32 */
    return _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256((const __m256i *)q));
}

INLINE __m256i joined(__m256i a, __m256i b) { return _mm256_hadd_epi16(a, b); }

INLINE void add_up_256(oe_act256 *act) {
    const int8_t *q = act->q;
    __m256i sums[4];
    for (int i = 0; i < 4; i++) {
        sums[i] = joined(pair_sums(q + 64 * i), pair_sums(q + 64 * i + 32));
    }
    const __m256i low = joined(sums[0], sums[1]), high = joined(sums[2], sums[3]);
    const __m256i all = joined(low, high); /* the first halves of 32 each, then the second halves */
    const __m128i first = _mm256_castsi256_si128(all), second = _mm256_extracti128_si256(all, 1);
    _mm_storeu_si128((__m128i *)act->sum16, _mm_unpacklo_epi16(first, second));
    _mm_storeu_si128((__m128i *)(act->sum16 + 8), _mm_unpackhi_epi16(first, second));
    _mm_storeu_si128((__m128i *)act->sum32, _mm_add_epi16(first, second));
}

INLINE int32_t sum_of_32(const int8_t *q) {
    const __m256i fours = _mm256_madd_epi16(pair_sums(q), _mm256_set1_epi16(1));
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
}

#else

INLINE void add_up_256(oe_act256 *act) {
    for (int j = 0; j < 16; j++) {
        int sum = 0;
        for (int i = 0; i < 16; i++) {
            sum += act->q[16 * j + i];
        }
        act->sum16[j] = (int16_t)sum;
    }
    for (int j = 0; j < 8; j++) {
        act->sum32[j] = (int16_t)(act->sum16[2 * j] + act->sum16[2 * j + 1]);
    }
}

INLINE int32_t sum_of_32(const int8_t *q) {
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) {
        sum += q[i];
    }
    return sum;
}

#endif

#endif
