/* Which of the instruction sets that this build uses throughout the CPU lacks. */
#ifndef OE_CPU_LACKS_H
#define OE_CPU_LACKS_H

#include <stdint.h>

#include "base/cpu_features.h"

#ifdef __cplusplus
extern "C" {
#endif
extern const uint32_t oe_built_for;
#ifdef __cplusplus
}
#endif

#if defined(__x86_64__)
#include <cpuid.h>

static inline uint32_t oe_cpuid_bit(unsigned subleaf, char which, int bit) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || subleaf > a || !__get_cpuid_count(7, subleaf, &a, &b, &c, &d)) {
        return 0;
    }
    return (which == 'a' ? a : which == 'c' ? c : d) >> bit & 1;
}

static inline uint32_t oe_cpu_lacks(void) {
    uint32_t here = 0;
#define OE_HERE(name, n) here |= (uint32_t)(__builtin_cpu_supports(name) != 0) << n;
    OE_CPU_FEATURES(OE_HERE)
#undef OE_HERE
#define OE_HERE(name, n, subleaf, which, bit) here |= oe_cpuid_bit(subleaf, #which[0], bit) << n;
    OE_CPU_FEATURES_BY_CPUID(OE_HERE)
#undef OE_HERE
    return oe_built_for & ~here;
}
#else
static inline uint32_t oe_cpu_lacks(void) { return 0; }
#endif

/* "" for numbers that have no feature. */
static inline const char *oe_cpu_feature_name(int number) {
#define OE_NAME(name, n, ...)                                                                                          \
    if (number == n) {                                                                                                 \
        return name;                                                                                                   \
    }
    OE_CPU_FEATURES(OE_NAME)
    OE_CPU_FEATURES_BY_CPUID(OE_NAME)
#undef OE_NAME
    return "";
}

#endif
