/* small_batch_floats.h with vectors of 512 bits. Compiled with AVX-512 switched on; called where the CPU has it. */
#include "kernels/small_batch.h"

#if defined(__AVX512F__)
#include <immintrin.h>

typedef __m512 vec16;

static inline vec16 zeros16(void) { return _mm512_setzero_ps(); }

static inline vec16 floats16(const float *x) { return _mm512_loadu_ps(x); }

static inline vec16 halves16(const void *x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)); }

static inline vec16 bfloats16(const void *x) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

static inline vec16 add_product16(vec16 sum, vec16 x, vec16 y) { return _mm512_fmadd_ps(x, y, sum); }

static inline float total16(vec16 x) {
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
    const __m256 of_8 = _mm256_add_ps(_mm512_castps512_ps256(x), upper);
    const __m128 of_4 = _mm_add_ps(_mm256_castps256_ps128(of_8), _mm256_extractf128_ps(of_8, 1));
    const __m128 of_2 = _mm_add_ps(of_4, _mm_movehl_ps(of_4, of_4));
    return _mm_cvtss_f32(_mm_add_ss(of_2, _mm_movehdup_ps(of_2)));
}

#define TILE 6
#define TILE_WEIGHTS 4
#define SINGLE oe_sb_floats_avx2 /* faster by up to a quarter where rows are long */
#define KERNELS oe_sb_floats_avx512
#include "kernels/small_batch_floats.h"

#else
const oe_sb_kernel oe_sb_floats_avx512[OE_SB_FLOATS];
#endif
