/* Vectors of 16 bytes: the whole numbers that stand for quantized ones in a block (simd16.h). */
#ifndef OE_CODES16_H
#define OE_CODES16_H

#include "base/simd16.h"

/* codes_halves: the 16 halves of bytes that begin at bit `shift` (0 or 4). codes_raised: bits[i] is bit 4 of x[i], of
 * which the other bits are below that. codes_picked: from[x[i]], for x[i] from 0 to 15. */
#if defined(__AVX2__)

typedef __m128i codes;

INLINE codes codes_load(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

INLINE codes codes_halves(const void *p, int shift) {
    return _mm_and_si128(_mm_srl_epi16(codes_load(p), _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
}

INLINE codes codes_raised(codes x, uint16_t bits) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return _mm_mask_add_epi8(x, bits, x, _mm_set1_epi8(16));
#else
    const __m128i each = _mm_set1_epi64x((int64_t)0x8040201008040201); /* a bit for each byte of a half */
    const uint64_t low = 0x0101010101010101u * (bits & 255), high = 0x0101010101010101u * (bits >> 8);
    const __m128i spread = _mm_set_epi64x((int64_t)high, (int64_t)low);
    const __m128i set = _mm_cmpeq_epi8(_mm_and_si128(spread, each), each);
    return _mm_or_si128(x, _mm_and_si128(set, _mm_set1_epi8(16)));
#endif
}

INLINE codes codes_less(codes x, int8_t by) { return _mm_sub_epi8(x, _mm_set1_epi8(by)); }
INLINE codes codes_picked(const int8_t *from, codes x) { return _mm_shuffle_epi8(codes_load(from), x); }

INLINE lanes lanes_from_codes(codes x) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
#else
    return lanes_of(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))));
#endif
}

#elif defined(OE_NEON)

typedef int8x16_t codes;

INLINE codes codes_load(const void *p) { return vld1q_s8(p); }

INLINE codes codes_halves(const void *p, int shift) {
    const uint8x16_t moved = vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)-shift));
    return vreinterpretq_s8_u8(vandq_u8(moved, vdupq_n_u8(15)));
}

INLINE codes codes_raised(codes x, uint16_t bits) {
    const uint8x8_t each = vcreate_u8(0x8040201008040201); /* a bit for each byte of a half */
    const uint8x8_t low = vtst_u8(vdup_n_u8((uint8_t)bits), each);
    const uint8x8_t high = vtst_u8(vdup_n_u8((uint8_t)(bits >> 8)), each);
    const uint8x16_t raise = vandq_u8(vcombine_u8(low, high), vdupq_n_u8(16));
    return vaddq_s8(x, vreinterpretq_s8_u8(raise));
}

INLINE codes codes_less(codes x, int8_t by) { return vsubq_s8(x, vdupq_n_s8(by)); }
INLINE codes codes_picked(const int8_t *from, codes x) { return vqtbl1q_s8(vld1q_s8(from), vreinterpretq_u8_s8(x)); }

INLINE lanes lanes_from_codes(codes x) {
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    return (lanes){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                    vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}

#else

typedef struct codes {
    int8_t at[OE_LANES];
} codes;

#define EACH_CODE(expression)                                                                                          \
    codes out;                                                                                                         \
    for (int i = 0; i < OE_LANES; i++) {                                                                               \
        out.at[i] = (int8_t)(expression);                                                                              \
    }                                                                                                                  \
    return out

INLINE codes codes_load(const void *p) { EACH_CODE(((const int8_t *)p)[i]); }
INLINE codes codes_halves(const void *p, int shift) { EACH_CODE(((const uint8_t *)p)[i] >> shift & 15); }
INLINE codes codes_raised(codes x, uint16_t bits) { EACH_CODE(x.at[i] | (bits >> i & 1) << 4); }
INLINE codes codes_less(codes x, int8_t by) { EACH_CODE(x.at[i] - by); }
INLINE codes codes_picked(const int8_t *from, codes x) { EACH_CODE(from[x.at[i]]); }
INLINE lanes lanes_from_codes(codes x) { EACH_LANE((float)x.at[i]); }

#endif

#endif
