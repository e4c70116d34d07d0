/* F16 weights. Activations are not rounded: f32. */
#include "base/simd16.h"

#define STEP 16
#define PACKED_FROM 48
#if defined(OE_SB_SCALAR)
#define TILE 3
#define TILE_WEIGHTS 1
#elif defined(__AVX512F__)
#define TILE 6
#define TILE_WEIGHTS 4
#define SINGLE_BY oe_sb_f16_avx2 /* faster than AVX-512, by up to a quarter where rows are long */
#else
#define TILE 3
#define TILE_WEIGHTS 2
#endif

typedef lanes numbers;
#if defined(__AVX512F__)
#define HOLD(x) __asm__("" : "+v"(x))
#endif

INLINE numbers read_weights(const uint8_t *x, const int n) {
    (void)n; /* always STEP */
    return lanes_from_f16(x);
}

INLINE numbers read_acts(const uint8_t *x) { return lanes_load((const float *)(const void *)x); }

/* GCC may put a sum where a factor was, and then moves it back: a fiftieth of the time. */
INLINE lanes add_products(numbers weights, numbers acts, lanes sum) {
#if defined(__AVX512F__)
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(acts));
    return sum;
#else
    return lanes_fma(weights, acts, sum);
#endif
}

#include "kernels/small_batch/floats.h"

const oe_sb_kernel OE_SB_KERNEL(f16) = {
    .block = OE_LANES,
    .act_bytes = OE_LANES * sizeof(float),
    .quantize = OE_SB_ACTS(copy16),
    .fused = &OE_SB_ACTS(fused),
    .multiply = oe_multiply,
    .in_tiles = true,
};
