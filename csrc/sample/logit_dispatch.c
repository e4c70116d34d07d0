/* The sets of kernels in this build; CMakeLists.txt compiles logit_kernels.c once for each. */
#include <stddef.h>

#include "sample/logit_kernels.h"

extern const oe_logit_kernels oe_rows_scalar, oe_rows_baseline;
#if defined(__x86_64__)
extern const oe_logit_kernels oe_rows_avx2, oe_rows_avx512;
#endif

static bool cpu_has(oe_logit_kernel_set set) {
#if defined(__x86_64__)
    if (set == OE_ROWS_AVX2) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
               __builtin_cpu_supports("popcnt");
    }
    if (set == OE_ROWS_AVX512) {
        return cpu_has(OE_ROWS_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    }
#endif
    return set == OE_ROWS_SCALAR || set == OE_ROWS_BASELINE;
}

const oe_logit_kernels *oe_logit_kernels_find(oe_logit_kernel_set set) {
    static const oe_logit_kernels *const sets[OE_LOGIT_KERNEL_SETS] = {
        [OE_ROWS_SCALAR] = &oe_rows_scalar,
        [OE_ROWS_BASELINE] = &oe_rows_baseline,
#if defined(__x86_64__)
        [OE_ROWS_AVX2] = &oe_rows_avx2,
        [OE_ROWS_AVX512] = &oe_rows_avx512,
#endif
    };
    return cpu_has(set) ? sets[set] : NULL;
}

const char *oe_logit_kernels_name(oe_logit_kernel_set set) {
    static const char *const names[OE_LOGIT_KERNEL_SETS] = {
        [OE_ROWS_SCALAR] = "scalar",
#if defined(__x86_64__)
        [OE_ROWS_BASELINE] = "sse2",
#elif defined(__aarch64__)
        [OE_ROWS_BASELINE] = "neon",
#else
        [OE_ROWS_BASELINE] = "baseline",
#endif
        [OE_ROWS_AVX2] = "avx2",
        [OE_ROWS_AVX512] = "avx512",
    };
    return names[set];
}
