/* What Q4_0 and Q5_0 have in common: a block of 32 begins with f16 d, and a weight is d * (code - ABOVE). A file
 * defines before it includes this:
 *
 *      BLOCK_BYTES
 *      ABOVE
 *      read_codes    INLINE void read_codes(window w, ints codes[8]), or in plain C
 *                    static void read_codes(const uint8_t *block, int8_t code[32]); codes as they are stored
 *      ADD_FOURS     add_block(true, 1, ...) in another way; may be left out */
#ifdef OE_SB_SCALAR

typedef oe_sb_block32 weight_block;

static void oe_sb_unpack_above(const uint8_t *p, weight_block *x) {
    x->d = oe_sb_read_f16(p);
    read_codes(p, x->code);
    for (int i = 0; i < 32; i++) {
        x->code[i] = (int8_t)(x->code[i] - ABOVE);
    }
}

#define unpack oe_sb_unpack_above
#define product oe_sb_block32_product
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/panel32.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    x->d = read_half(w, 0);
    read_codes(w, x->codes);
    subtract_from_all(8, x->codes, ABOVE);
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
#ifdef ADD_FOURS
    if (fours && n_tile == 1) {
        ADD_FOURS(w, act, out);
        return;
    }
#endif
    fetch_part(w, BLOCK_BYTES, 0, 1);
    const floats d = read_half(w, 0);
    ints codes[8];
    read_codes(w, codes);
    add_block_above(fours, n_tile, ABOVE, d, codes, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif
