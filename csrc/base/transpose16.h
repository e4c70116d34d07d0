/* Transposing 16 x 16 floats in vectors of simd16.h. */
#ifndef OE_TRANSPOSE16_H
#define OE_TRANSPOSE16_H

#include "base/simd16.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

/* to[i * stride + j] = lane i of x[j]. */
INLINE void lanes_transpose(const lanes *x, float *to, int64_t stride) {
    lanes pair[OE_LANES], quad[OE_LANES];
#pragma GCC unroll 8
    for (int i = 0; i < OE_LANES; i += 2) {
        pair[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        pair[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    /* quad[4 * k + r]: of x[4 * k .. 4 * k + 3] lanes r, r + 4, r + 8 and r + 12, four numbers each. */
#pragma GCC unroll 4
    for (int i = 0; i < OE_LANES; i += 4) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(pair[i + j]), b = _mm512_castps_pd(pair[i + j + 2]);
            quad[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            quad[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        const lanes a = _mm512_shuffle_f32x4(quad[r], quad[r + 4], 0x44);
        const lanes b = _mm512_shuffle_f32x4(quad[r + 8], quad[r + 12], 0x44);
        const lanes c = _mm512_shuffle_f32x4(quad[r], quad[r + 4], 0xee);
        const lanes d = _mm512_shuffle_f32x4(quad[r + 8], quad[r + 12], 0xee);
        lanes_store(to + r * stride, _mm512_shuffle_f32x4(a, b, 0x88));
        lanes_store(to + (r + 4) * stride, _mm512_shuffle_f32x4(a, b, 0xdd));
        lanes_store(to + (r + 8) * stride, _mm512_shuffle_f32x4(c, d, 0x88));
        lanes_store(to + (r + 12) * stride, _mm512_shuffle_f32x4(c, d, 0xdd));
    }
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

INLINE void transpose_8(const __m256 *x, float *to, int64_t stride) {
    __m256 pair[8], quad[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            quad[i + 2 * j] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0x44);
            quad[i + 2 * j + 1] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0xee);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        _mm256_storeu_ps(to + r * stride, _mm256_permute2f128_ps(quad[r], quad[r + 4], 0x20));
        _mm256_storeu_ps(to + (r + 4) * stride, _mm256_permute2f128_ps(quad[r], quad[r + 4], 0x31));
    }
}

INLINE void lanes_transpose(const lanes *x, float *to, int64_t stride) {
#pragma GCC unroll 2
    for (int half = 0; half < OE_LANES; half += 8) {
        __m256 part[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            part[i] = x[half + i].low;
        }
        transpose_8(part, to + half, stride);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            part[i] = x[half + i].high;
        }
        transpose_8(part, to + 8 * stride + half, stride);
    }
}

#elif defined(OE_NEON)

/* to[i][j] = x[j][i], of 4 times 4. */
INLINE void transpose_4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, float *to, int64_t stride) {
    const float64x2_t low_ab = vreinterpretq_f64_f32(vzip1q_f32(a, b));
    const float64x2_t low_cd = vreinterpretq_f64_f32(vzip1q_f32(c, d));
    const float64x2_t high_ab = vreinterpretq_f64_f32(vzip2q_f32(a, b));
    const float64x2_t high_cd = vreinterpretq_f64_f32(vzip2q_f32(c, d));
    vst1q_f32(to, vreinterpretq_f32_f64(vzip1q_f64(low_ab, low_cd)));
    vst1q_f32(to + stride, vreinterpretq_f32_f64(vzip2q_f64(low_ab, low_cd)));
    vst1q_f32(to + 2 * stride, vreinterpretq_f32_f64(vzip1q_f64(high_ab, high_cd)));
    vst1q_f32(to + 3 * stride, vreinterpretq_f32_f64(vzip2q_f64(high_ab, high_cd)));
}

INLINE void lanes_transpose(const lanes *x, float *to, int64_t stride) {
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < OE_LANES; j += 4) {
            transpose_4(x[j].at[i], x[j + 1].at[i], x[j + 2].at[i], x[j + 3].at[i], to + 4 * i * stride + j, stride);
        }
    }
}

#else

INLINE void lanes_transpose(const lanes *x, float *to, int64_t stride) {
    for (int i = 0; i < OE_LANES; i++) {
        for (int j = 0; j < OE_LANES; j++) {
            to[i * stride + j] = x[j].at[i];
        }
    }
}

#endif

#endif
