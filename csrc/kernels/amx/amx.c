#include "kernels/amx/amx.h"

#include "base/cpu.h"

#if defined(OE_HAS_AMX) /* base/instruction_sets.cmake: on Linux only */
#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define TILE_DATA 18 /* the part of a thread's state that the system has to allow */

#define AMX_BF16 (1u << 22)
#define AMX_TILE (1u << 24)
#define AMX_INT8 (1u << 25)

static bool cpu_has(unsigned features) {
    unsigned a, b, c, d;
    return oe_cpu_has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & features) == features;
}

static bool cpu_has_avx512_bf16(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

static bool system_allows(void) {
    static _Atomic int known; /* 0: not asked yet, 1: no, 2: yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == 0) {
        answer = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

bool oe_amx_allowed(void) { return cpu_has(AMX_TILE | AMX_BF16) && cpu_has_avx512_bf16() && system_allows(); }

bool oe_amx_int8_allowed(void) { return cpu_has(AMX_TILE | AMX_INT8) && system_allows(); }

#else

bool oe_amx_allowed(void) { return false; }
bool oe_amx_int8_allowed(void) { return false; }

#endif
