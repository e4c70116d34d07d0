#include "kernels/attention.h"

#include <stdbool.h>

#include "base/cpu.h"
#include "base/simd16.h"

#define LEAST 256 /* fewest cells of a piece: starting and joining a piece costs as much as about ten cells */

int64_t oe_attention_partial(int64_t value_dim) {
    return 2 * OE_LANES + (value_dim + OE_LANES - 1) / OE_LANES * OE_LANES;
}

int64_t oe_attention_scratch(int64_t key_dim, int64_t value_dim) {
    const bool many = key_dim <= OE_ATTENTION_MANY_DIM && value_dim <= OE_ATTENTION_MANY_DIM;
    return many ? OE_TILE * (key_dim + (value_dim + OE_LANES - 1) / OE_LANES * OE_LANES) : 0;
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

static bool cpu_has(oe_attention_isa isa) {
    switch (isa) {
    case OE_ATTENTION_AVX2: return oe_cpu_has_avx2_fma_f16c();
    case OE_ATTENTION_AVX512: return oe_cpu_has_avx512();
    default: return isa == OE_ATTENTION_SCALAR;
    }
}

const oe_attention_kernel *oe_attention_kernel_find(oe_attention_type type, oe_attention_isa isa) {
    static const oe_attention_kernel *const kernels[OE_ATTENTION_ISAS] = {
        [OE_ATTENTION_SCALAR] = oe_attention_scalar,
#if defined(__x86_64__)
        [OE_ATTENTION_AVX2] = oe_attention_avx2,
        [OE_ATTENTION_AVX512] = oe_attention_avx512,
#endif
    };
    return cpu_has(isa) ? &kernels[isa][type] : NULL;
}
