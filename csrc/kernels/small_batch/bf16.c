/* BF16 weights. Activations are rounded to BF16, as in ggml, and VDPBF16PS multiplies them where the CPU has it. Of
 * each 32 numbers a lane adds the product of the second of its pair and then that of the first, with one rounding each,
 * and numbers below 2^-126 count as 0: that is what the instruction does, and fused products do it elsewhere. (Beside
 * x86 small numbers are kept.) */
#include "base/simd16.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define STEP 32
#define PACKED_FROM 64
#if defined(OE_SB_SCALAR)
#define TILE 3
#define TILE_WEIGHTS 1
#elif defined(__AVX512BF16__)
#define TILE 6
#define TILE_WEIGHTS 4
#elif defined(__AVX512F__)
#define TILE 5
#define TILE_WEIGHTS 4
#define SINGLE_BY oe_sb_bf16_avx2 /* as for F16 */
#else
#define TILE 3
#define TILE_WEIGHTS 2
#endif

#if defined(__AVX512BF16__)

typedef __m512i numbers;
#define HOLD(x) __asm__("" : "+v"(x))

INLINE numbers read_weights(const uint8_t *x, const int n) {
    return n == STEP ? _mm512_loadu_si512(x) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)x));
}

INLINE lanes add_products(numbers weights, numbers acts, lanes sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)acts);
}

#else

typedef struct numbers {
    lanes first, second; /* of each pair */
} numbers;

#if defined(__AVX512F__)
#define HOLD(x) __asm__("" : "+v"(x.first), "+v"(x.second))
#endif

#if defined(OE_SB_SCALAR)
INLINE numbers read_weights(const uint8_t *x, const int n) {
    uint16_t pairs[2 * OE_LANES] = {0};
    numbers out;
    memcpy(pairs, x, 2 * (size_t)n);
    for (int i = 0; i < OE_LANES; i++) {
        out.first.at[i] = oe_float_of_bits((uint32_t)pairs[2 * i] << 16);
        out.second.at[i] = oe_float_of_bits((uint32_t)pairs[2 * i + 1] << 16);
    }
    return out;
}
#elif defined(__AVX512F__)
INLINE numbers read_weights(const uint8_t *x, const int n) {
    const __m512i pairs =
        n == STEP ? _mm512_loadu_si512(x) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)x));
    return (numbers){_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
                     _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(~0xffff)))};
}
#elif defined(OE_NEON)
INLINE numbers read_weights(const uint8_t *x, const int n) {
    numbers out;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const uint32x4_t pairs = 8 * i < n ? vreinterpretq_u32_u8(vld1q_u8(x + 16 * i)) : vdupq_n_u32(0);
        out.first.at[i] = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
        out.second.at[i] = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
    }
    return out;
}
#else
INLINE __m256 first_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
INLINE __m256 second_of(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(~0xffff)));
}

INLINE numbers read_weights(const uint8_t *x, const int n) {
    const __m256i *const at = (const __m256i *)x;
    const __m256i low = _mm256_loadu_si256(at), high = n == STEP ? _mm256_loadu_si256(at + 1) : _mm256_setzero_si256();
    return (numbers){lanes_of(first_of(low), first_of(high)), lanes_of(second_of(low), second_of(high))};
}
#endif

INLINE lanes add_products(numbers weights, numbers acts, lanes sum) {
    return lanes_fma(weights.first, acts.first, lanes_fma(weights.second, acts.second, sum));
}

#endif

INLINE numbers read_acts(const uint8_t *x) { return read_weights(x, STEP); }

#include "kernels/small_batch/floats.h"

#if defined(__SSE2__)
#define SMALL_ARE_ZERO 0x8040 /* of MXCSR: of operands and of results */

static void multiply_normal(const oe_sb_product *p, int64_t first, int64_t last) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | SMALL_ARE_ZERO);
    oe_multiply(p, first, last);
    _mm_setcsr(before);
}
#else
#define multiply_normal oe_multiply
#endif

const oe_sb_kernel OE_SB_KERNEL(bf16) = {
    .block = OE_LANES,
    .act_bytes = OE_LANES * sizeof(uint16_t),
    .quantize = OE_SB_ACTS(round16),
    .fused = &OE_SB_ACTS(fused),
    .multiply = multiply_normal,
    .in_tiles = true,
};
