/* small_batch_floats.h with two vectors of 256 bits. Compiled with AVX2, FMA and F16C switched on; called where the CPU
 * has them. */
#include "kernels/small_batch.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

typedef struct vec16 {
    __m256 low, high;
} vec16;

static inline vec16 zeros16(void) { return (vec16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }

static inline vec16 floats16(const float *x) { return (vec16){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }

static inline vec16 halves16(const void *x) {
    const __m128i *halves = x;
    return (vec16){_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

static inline __m256 bfloats8(const __m128i *x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(x)), 16));
}

static inline vec16 bfloats16(const void *x) {
    const __m128i *words = x;
    return (vec16){bfloats8(words), bfloats8(words + 1)};
}

static inline vec16 add_product16(vec16 sum, vec16 x, vec16 y) {
    return (vec16){_mm256_fmadd_ps(x.low, y.low, sum.low), _mm256_fmadd_ps(x.high, y.high, sum.high)};
}

static inline float total16(vec16 x) {
    const __m256 of_8 = _mm256_add_ps(x.low, x.high);
    const __m128 of_4 = _mm_add_ps(_mm256_castps256_ps128(of_8), _mm256_extractf128_ps(of_8, 1));
    const __m128 of_2 = _mm_add_ps(of_4, _mm_movehl_ps(of_4, of_4));
    return _mm_cvtss_f32(_mm_add_ss(of_2, _mm_movehdup_ps(of_2)));
}

#define TILE 3
#define TILE_WEIGHTS 2
#define KERNELS oe_sb_floats_avx2
#include "kernels/small_batch_floats.h"

#else
const oe_sb_kernel oe_sb_floats_avx2[OE_SB_FLOATS];
#endif
