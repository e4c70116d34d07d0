/* IQ4_NL: 32 weights in 18 bytes: f16 d, 32 codes of 4 bits. A weight is d * LEVELS[code]. */
#include "kernels/small_batch/activations.h"
#include "kernels/small_batch/iq4_levels.h"

#define BLOCK_BYTES 18

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block32 weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    x->d = oe_sb_read_f16(p);
    oe_sb_codes_of_4_bits(p + 2, x->code);
    for (int i = 0; i < 32; i++) {
        x->code[i] = LEVELS[x->code[i]];
    }
}

#define product oe_sb_block32_product
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/tile_sums.h"

/* The numbers, as dot_32_signed takes them. */
INLINE void read_codes(window w, ints codes[8]) {
    load_picked_codes(w, 2, ready_signed(ints_repeat(LEVELS)), codes);
}

#include "kernels/small_batch/panel32.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    x->d = read_half(w, 0);
    read_codes(w, x->codes);
    ready_all_signed(x->codes); /* its own inverse */
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    fetch_part(w, BLOCK_BYTES, 0, 1);
    const floats d = read_half(w, 0);
    ints codes[8];
    read_codes(w, codes);
    add_signed_block(fours, n_tile, 127, d, codes, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_32(iq4_nl);
