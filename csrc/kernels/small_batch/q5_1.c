/* Q5_1: 32 weights in 24 bytes: f16 d, f16 m, the fifth bits of the codes in 4 bytes, their other 4 bits in 16 bytes. A
 * weight is d * code + m. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 24

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block32_from weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    x->d = oe_sb_read_f16(p);
    x->minus_eighth = oe_sb_read_f16(p + 2) * -0.125f;
    oe_sb_codes_of_4_bits(p + 8, x->code);
    oe_sb_add_fifth_bits(p + 4, x->code);
}

#define product oe_sb_block32_from_product
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/lanes.h"

INLINE void read_codes(window w, ints codes[8]) {
    ints head[4];
    load_words(w, 0, head);
    load_codes_of_4_bits(w, 8, codes);
    add_fifth_bits(head[1], codes);
}

#ifdef OE_SB_TILES
#define WITH_MINIMUM
#include "kernels/small_batch/panel32.h"

INLINE void unpack_block(window w, panel_block *x) {
    ints head[4];
    load_words(w, 0, head);
    x->d = half_low(head[0]);
    x->minus_eighth = floats_multiply(half_high(head[0]), floats_set(-0.125f));
    read_codes(w, x->codes);
}

#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool single, const int n_tile, window w, const act_block *act, floats *out) {
    fetch_part(w, BLOCK_BYTES, 0, 1);
    ints head[4], codes[8];
    load_words(w, 0, head);
    read_codes(w, codes);
    const floats d = half_low(head[0]);
    const floats minus_eighth = floats_multiply(half_high(head[0]), floats_set(-0.125f));
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const act_block *a = act + OE_QUAD * n;
        const ints dot = dot_32(single, 31, codes, ints_set(0), a);
        add_scaled_from(single, d, dot, minus_eighth, a, out + n);
    }
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_32(q5_1);
