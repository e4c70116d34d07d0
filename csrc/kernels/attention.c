#include "kernels/attention.h"

#include <stdbool.h>

#include "base/cpu.h"
#include "base/simd16.h"

#define LEAST 256 /* fewest cells of a piece: starting and joining a piece costs as much as about ten cells */

int64_t oe_attention_partial(int64_t value_dim) {
    return 2 * OE_LANES + (value_dim + OE_LANES - 1) / OE_LANES * OE_LANES;
}

int64_t oe_attention_scratch(int64_t key_dim, int64_t value_dim) {
    const int64_t paired = 2 * OE_LANES, stride = (key_dim + paired - 1) / paired * paired;
    const int64_t rounded = (OE_MOST_QUERIES + OE_TILE) * (stride / 2 + 1) + OE_LANES * stride;
    const bool many = key_dim <= OE_ATTENTION_MANY_DIM && value_dim <= OE_ATTENTION_MANY_DIM;
    return rounded + (many ? OE_TILE * (stride + (value_dim + OE_LANES - 1) / OE_LANES * OE_LANES) : 0);
}

/* A power of two times LEAST, so that neighbouring rows of a prompt mostly have the same pieces. */
int64_t oe_attention_piece_size(int64_t n) {
    int64_t size = LEAST;
    while (size * OE_PIECES < n) {
        size *= 2;
    }
    return size;
}

int64_t oe_attention_pieces(int64_t n) {
    const int64_t size = oe_attention_piece_size(n);
    return n < 1 ? 1 : (n + size - 1) / size;
}

int64_t oe_attention_most_pieces(int64_t n) {
    const int64_t least = (n + LEAST - 1) / LEAST;
    return n < 1 ? 1 : least < OE_PIECES ? least : OE_PIECES;
}

#define OE_ATTENTION_NAME(upper, lower, ...) #lower,
#define OE_ATTENTION_ENTRY(upper, lower, set) &oe_attention_##lower##_##set,
#define OE_ATTENTION_EXTERN(upper, lower, set) extern const oe_attention_kernel oe_attention_##lower##_##set;
#define OE_ATTENTION_KERNELS(set) {OE_ATTENTION_EACH_TYPE(OE_ATTENTION_ENTRY, set)}
#define OE_ATTENTION_DECLARE(set) OE_ATTENTION_EACH_TYPE(OE_ATTENTION_EXTERN, set)
OE_ATTENTION_DECLARE(scalar)
OE_ATTENTION_DECLARE(avx2) /* this one and those below: where the build has them (base/instruction_sets.cmake) */
OE_ATTENTION_DECLARE(avx512)
OE_ATTENTION_DECLARE(neon)

const char *oe_attention_type_name(oe_attention_type type) {
    static const char *const names[] = {OE_ATTENTION_EACH_TYPE(OE_ATTENTION_NAME, )};
    return names[type];
}

static bool cpu_has(oe_attention_isa isa) {
    switch (isa) {
    case OE_ATTENTION_AVX2: return oe_cpu_has_avx2_fma_f16c();
    case OE_ATTENTION_AVX512: return oe_cpu_has_avx512_vnni();
    default: return isa == OE_ATTENTION_SCALAR || isa == OE_ATTENTION_NEON;
    }
}

const oe_attention_kernel *oe_attention_kernel_find(oe_attention_type type, oe_attention_isa isa) {
    static const oe_attention_kernel *const kernels[OE_ATTENTION_ISAS][OE_ATTENTION_TYPES] = {
        [OE_ATTENTION_SCALAR] = OE_ATTENTION_KERNELS(scalar),
#if defined(OE_HAS_AVX2)
        [OE_ATTENTION_AVX2] = OE_ATTENTION_KERNELS(avx2),
#endif
#if defined(OE_HAS_AVX512)
        [OE_ATTENTION_AVX512] = OE_ATTENTION_KERNELS(avx512),
#endif
#if defined(OE_HAS_NEON)
        [OE_ATTENTION_NEON] = OE_ATTENTION_KERNELS(neon),
#endif
    };
    return cpu_has(isa) ? kernels[isa][type] : NULL;
}
