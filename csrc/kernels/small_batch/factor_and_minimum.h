/* What Q4_1 and Q5_1 have in common: a block of 32 begins with f16 d and f16 m, and a weight is d * code + m. A file
 * defines before it includes this:
 *
 *      BLOCK_BYTES
 *      MOST          the largest code
 *      read_codes    INLINE void read_codes(window w, ints codes[8]), or in plain C
 *                    static void read_codes(const uint8_t *block, int8_t code[32]) */
#ifdef OE_SB_SCALAR

typedef oe_sb_block32_from weight_block;

static void oe_sb_unpack_from(const uint8_t *p, weight_block *x) {
    x->d = oe_sb_read_f16(p);
    x->minus_eighth = oe_sb_read_f16(p + 2) * -0.125f;
    read_codes(p, x->code);
}

#define unpack oe_sb_unpack_from
#define product oe_sb_block32_from_product
#include "kernels/small_batch/scalar_product.h"
#else

typedef struct block_factors {
    floats d, minus_eighth; /* of m */
} block_factors;

INLINE block_factors factors_of(ints first_word) {
    return (block_factors){half_low(first_word), floats_multiply(half_high(first_word), floats_set(-0.125f))};
}

#define WITH_MINIMUM
#include "kernels/small_batch/panel32.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    const block_factors factors = factors_of(load_word(w, 0));
    x->d = factors.d;
    x->minus_eighth = factors.minus_eighth;
    read_codes(w, x->codes);
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    fetch_part(w, BLOCK_BYTES, 0, 1);
    ints codes[8];
    read_codes(w, codes);
    const block_factors factors = factors_of(load_word(w, 0));
    int n = add_pairs_of_rows(n_tile, 0, factors.d, &factors.minus_eighth, codes, act, out);
#pragma GCC unroll 8
    for (; n < n_tile; n++) {
        const act_block *a = act + OE_QUAD * n;
        const ints dot = dot_32(fours, MOST, codes, ints_set(0), a);
        add_scaled_from(fours, factors.d, dot, factors.minus_eighth, a, out + n);
    }
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif
