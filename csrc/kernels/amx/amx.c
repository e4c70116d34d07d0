#include "kernels/amx/amx.h"

#include "base/cpu.h"

#if defined(__x86_64__) && defined(__linux__) && !defined(OE_NO_AMX)
#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define TILE_DATA 18 /* the part of a thread's state that the system has to allow */

static bool cpu_has_amx(void) {
    unsigned a, b, c, d;
    if (!oe_cpu_has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return false;
    }
    const bool amx = (d >> 22 & 1) && (d >> 24 & 1); /* AMX-BF16, AMX-TILE */
    return amx && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1); /* AVX512-BF16 */
}

bool oe_amx_allowed(void) {
    static _Atomic int known; /* 0: not asked yet, 1: no, 2: yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == 0) {
        answer = cpu_has_amx() && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

#else

bool oe_amx_allowed(void) { return false; }

#endif
