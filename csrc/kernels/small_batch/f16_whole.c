/* F16 weights, with activations of 16 bits. */
#include "base/simd16.h"

#define EXPONENT_AT 10
#define LEAST 1
#define MOST 31
#define BIAS 15

INLINE lanes read_weights(const uint8_t *x) { return lanes_from_f16(x); }

#include "kernels/small_batch/whole16.h"

OE_SB_DEFINE_16(f16_whole);
