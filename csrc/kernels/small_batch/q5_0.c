/* Q5_0: 32 weights in 22 bytes: f16 d, the fifth bits of the codes in 4 bytes, their other 4 bits in 16 bytes. A weight
 * is d * (code - 16). */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 22

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block32 weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    x->d = oe_sb_read_f16(p);
    oe_sb_codes_of_4_bits(p + 6, x->code);
    oe_sb_add_fifth_bits(p + 2, x->code);
    for (int i = 0; i < 32; i++) {
        x->code[i] = (int8_t)(x->code[i] - 16);
    }
}

#define product oe_sb_block32_product
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/tile_sums.h"

/* From 0 to 31: 16 more than what counts. */
INLINE void read_codes(window w, ints codes[8]) {
    ints head[4];
    load_words(w, 0, head);
    load_codes_of_4_bits(w, 6, codes);
    add_fifth_bits(ints_or(ints_shift_right(head[0], 16), ints_shift_left(head[1], 16)), codes);
}

#include "kernels/small_batch/panel32.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    x->d = read_half(w, 0);
    read_codes(w, x->codes);
    subtract_from_all(8, x->codes, 16);
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool single, const int n_tile, window w, const act_block *act, floats *out) {
    fetch_part(w, BLOCK_BYTES, 0, 1);
    const floats d = read_half(w, 0);
    ints codes[8];
    read_codes(w, codes);
    add_block_above(single, n_tile, 16, d, codes, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_32(q5_0);
