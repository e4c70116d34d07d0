/* What the compiler may use with the flags that ggml's CPU library is built with. They are this file's, too, so it
 * holds data only: it must not run anything. */
#include <stdint.h>

extern const uint32_t oe_built_for; /* bit n: the feature of number n in cpu_features.h */

const uint32_t oe_built_for = 0
#ifdef __SSE3__
                              | 1u << 0
#endif
#ifdef __SSSE3__
                              | 1u << 1
#endif
#ifdef __SSE4_1__
                              | 1u << 2
#endif
#ifdef __SSE4_2__
                              | 1u << 3
#endif
#ifdef __POPCNT__
                              | 1u << 4
#endif
#ifdef __AVX__
                              | 1u << 5
#endif
#ifdef __AVX2__
                              | 1u << 6
#endif
#ifdef __FMA__
                              | 1u << 7
#endif
#ifdef __F16C__
                              | 1u << 8
#endif
#ifdef __BMI__
                              | 1u << 9
#endif
#ifdef __BMI2__
                              | 1u << 10
#endif
#ifdef __AVX512F__
                              | 1u << 11
#endif
#ifdef __AVX512CD__
                              | 1u << 12
#endif
#ifdef __AVX512BW__
                              | 1u << 13
#endif
#ifdef __AVX512DQ__
                              | 1u << 14
#endif
#ifdef __AVX512VL__
                              | 1u << 15
#endif
#ifdef __AVX512VBMI__
                              | 1u << 16
#endif
#ifdef __AVX512VBMI2__
                              | 1u << 17
#endif
#ifdef __AVX512VNNI__
                              | 1u << 18
#endif
#ifdef __AVX512BITALG__
                              | 1u << 19
#endif
#ifdef __AVX512VPOPCNTDQ__
                              | 1u << 20
#endif
#ifdef __AVXVNNI__
                              | 1u << 21
#endif
#ifdef __AVX512BF16__
                              | 1u << 22
#endif
#ifdef __AVX512FP16__
                              | 1u << 23
#endif
#ifdef __GFNI__
                              | 1u << 24
#endif
    ;
