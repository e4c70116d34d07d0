#include "base/cpu.h"
#include "kernels/recurrent/kernel.h"

extern const oe_recurrent_kernel oe_recurrent_scalar;
/* Where the build has them. */
extern const oe_recurrent_kernel oe_recurrent_avx2, oe_recurrent_avx512, oe_recurrent_neon;

const oe_recurrent_kernel *oe_recurrent_kernel_find(oe_recurrent_isa isa) {
    switch (isa) {
    case OE_RECURRENT_SCALAR: return &oe_recurrent_scalar;
#if defined(OE_HAS_AVX2)
    case OE_RECURRENT_AVX2: return oe_cpu_has_avx2_fma_f16c() ? &oe_recurrent_avx2 : NULL;
#endif
#if defined(OE_HAS_AVX512)
    case OE_RECURRENT_AVX512: return oe_cpu_has_avx512_vnni() ? &oe_recurrent_avx512 : NULL;
#endif
#if defined(OE_HAS_NEON)
    case OE_RECURRENT_NEON: return &oe_recurrent_neon;
#endif
    default: return NULL;
    }
}
