/* Checks for the instruction sets that kernels are compiled for. A check covers every extension in the set's compiler
 * flags, because a compiler may use any of them anywhere in such a file. */
#ifndef OE_CPU_H
#define OE_CPU_H

#include <stdbool.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#ifndef HWCAP2_I8MM /* of Linux 5.10, whose headers may be newer than those that are compiled with */
#define HWCAP2_I8MM (1 << 13)
#endif
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>

static inline bool oe_cpu_has_avx2_fma_f16c(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

/* Read from CPUID: some compilers have the instructions but not this name for __builtin_cpu_supports. */
static inline bool oe_cpu_has_avx_vnni(void) {
    unsigned a, b, c, d;
    return oe_cpu_has_avx2_fma_f16c() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

/* F, BW and VL, beside all that comes before. */
static inline bool oe_cpu_has_avx512(void) {
    return oe_cpu_has_avx2_fma_f16c() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

static inline bool oe_cpu_has_avx512_vnni(void) {
    return oe_cpu_has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* VDPBF16PS, beside all that comes before. */
static inline bool oe_cpu_has_avx512_bf16(void) {
    unsigned a, b, c, d;
    return oe_cpu_has_avx512_vnni() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

static inline bool oe_cpu_is_intel(void) { return __builtin_cpu_is("intel"); }
static inline bool oe_cpu_has_neon_dotprod(void) { return false; }
static inline bool oe_cpu_has_neon_i8mm(void) { return false; }

#else

static inline bool oe_cpu_has_avx2_fma_f16c(void) { return false; }
static inline bool oe_cpu_has_avx_vnni(void) { return false; }
static inline bool oe_cpu_has_avx512(void) { return false; }
static inline bool oe_cpu_has_avx512_vnni(void) { return false; }
static inline bool oe_cpu_has_avx512_bf16(void) { return false; }
static inline bool oe_cpu_is_intel(void) { return false; }

/* SDOT. All of Apple's have it; elsewhere Linux says so. */
static inline bool oe_cpu_has_neon_dotprod(void) {
#if defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__aarch64__) && defined(__APPLE__)
    return true;
#else
    return false;
#endif
}

/* SMMLA, beside SDOT. */
static inline bool oe_cpu_has_neon_i8mm(void) {
#if defined(__aarch64__) && defined(__linux__)
    return oe_cpu_has_neon_dotprod() && getauxval(AT_HWCAP2) & HWCAP2_I8MM;
#elif defined(__aarch64__) && defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) == 0 && has;
#else
    return false;
#endif
}

#endif

#endif
