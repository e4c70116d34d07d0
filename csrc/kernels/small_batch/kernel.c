#include "kernels/small_batch/kernel.h"

#include <stdbool.h>

#include "base/cpu.h"
#include "kernels/amx/amx.h"

/* The kernels of one type by oe_sb_isa, NULL where this build has none (OE_HAS_*: base/instruction_sets.cmake). Those
 * of 16-bit weights use neither AVX-VNNI, AMX nor SMMLA. */
#if defined(OE_HAS_AVX2)
#define AVX2(type) &oe_sb_##type##_avx2
#else
#define AVX2(type) NULL
#endif
#if defined(OE_HAS_AVXVNNI)
#define AVX_VNNI(type) &oe_sb_##type##_avxvnni
#else
#define AVX_VNNI(type) NULL
#endif
#if defined(OE_HAS_AVX512)
#define AVX512(type) &oe_sb_##type##_avx512
#else
#define AVX512(type) NULL
#endif
#if defined(OE_HAS_AMX)
#define AMX(type) &oe_sb_##type##_amx
#else
#define AMX(type) NULL
#endif
#if defined(OE_HAS_NEON)
#define NEON(type) &oe_sb_##type##_neon
#else
#define NEON(type) NULL
#endif
#if defined(OE_HAS_I8MM)
#define I8MM(type) &oe_sb_##type##_i8mm
#else
#define I8MM(type) NULL
#endif
#define FLOAT_KERNELS(type) {&oe_sb_##type##_scalar, AVX2(type), NULL, AVX512(type), NULL, NEON(type), NULL}
#define KERNELS(type)                                                                                                  \
    {&oe_sb_##type##_scalar, AVX2(type), AVX_VNNI(type), AVX512(type), AMX(type), NEON(type), I8MM(type)}

#define DECLARE(type)                                                                                                  \
    extern const oe_sb_kernel oe_sb_##type##_scalar, oe_sb_##type##_avx2, oe_sb_##type##_avxvnni,                      \
        oe_sb_##type##_avx512, oe_sb_##type##_amx, oe_sb_##type##_neon, oe_sb_##type##_i8mm

DECLARE(q4_k);
DECLARE(q6_k);
DECLARE(q5_k);
DECLARE(q3_k);
DECLARE(q2_k);
DECLARE(iq4_xs);
DECLARE(q4_0);
DECLARE(q8_0);
DECLARE(mxfp4);
DECLARE(q4_1);
DECLARE(q5_0);
DECLARE(q5_1);
DECLARE(iq4_nl);
DECLARE(f16);
DECLARE(bf16);
DECLARE(f16_whole);
extern const oe_sb_kernel oe_sb_bf16_avx512bf16; /* of OE_SB_AVX512, where the CPU has VDPBF16PS */

static const oe_sb_kernel *const all[OE_SB_TYPES][OE_SB_ISAS] = {
    [OE_SB_Q4_K] = KERNELS(q4_k),
    [OE_SB_Q6_K] = KERNELS(q6_k),
    [OE_SB_Q5_K] = KERNELS(q5_k),
    [OE_SB_Q3_K] = KERNELS(q3_k),
    [OE_SB_Q2_K] = KERNELS(q2_k),
    [OE_SB_IQ4_XS] = KERNELS(iq4_xs),
    [OE_SB_Q4_0] = KERNELS(q4_0),
    [OE_SB_Q8_0] = KERNELS(q8_0),
    [OE_SB_MXFP4] = KERNELS(mxfp4),
    [OE_SB_Q4_1] = KERNELS(q4_1),
    [OE_SB_Q5_0] = KERNELS(q5_0),
    [OE_SB_Q5_1] = KERNELS(q5_1),
    [OE_SB_IQ4_NL] = KERNELS(iq4_nl),
    [OE_SB_F16] = FLOAT_KERNELS(f16),
    [OE_SB_BF16] = FLOAT_KERNELS(bf16),
    [OE_SB_F16_WHOLE] = FLOAT_KERNELS(f16_whole),
};

static bool cpu_has(oe_sb_isa isa) {
    switch (isa) {
    case OE_SB_AVX2: return oe_cpu_has_avx2_fma_f16c();
    case OE_SB_AVX_VNNI: return oe_cpu_has_avx_vnni();
    case OE_SB_AVX512: return oe_cpu_has_avx512_vnni();
    case OE_SB_AMX: return oe_cpu_has_avx512_vnni() && oe_amx_int8_allowed();
    case OE_SB_NEON: return oe_cpu_has_neon_dotprod();
    case OE_SB_I8MM: return oe_cpu_has_neon_i8mm();
    default: return isa == OE_SB_PLAIN;
    }
}

const oe_sb_kernel *oe_sb_kernel_find(oe_sb_type type, oe_sb_isa isa, int64_t m) {
    if (!cpu_has(isa) || !all[type][isa]) {
        return NULL;
    }
#if defined(OE_HAS_AVX512BF16)
    if (type == OE_SB_BF16 && isa == OE_SB_AVX512 && m >= OE_SB_GROUP && oe_cpu_has_avx512_bf16()) {
        return &oe_sb_bf16_avx512bf16;
    }
#endif
    return all[type][m < OE_SB_GROUP ? OE_SB_PLAIN : isa];
}
