/* Q8_0: 32 weights in 34 bytes: f16 d, 32 signed codes of 8 bits. A weight is d * code. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 34

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block32 weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    x->d = oe_sb_read_f16(p);
    memcpy(x->code, p + 2, 32);
}

#define product oe_sb_block32_product
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/tile_sums.h"

#include "kernels/small_batch/panel32.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    x->d = read_half(w, 0);
    load_words(w, 2, x->codes);
    load_words(w, 18, x->codes + 4);
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    fetch_part(w, BLOCK_BYTES, 0, 1);
    const floats d = read_half(w, 0);
    ints codes[8];
    load_words(w, 2, codes);
    load_words(w, 18, codes + 4);
    ready_all_signed(codes);
    add_signed_block(fours, n_tile, 128, d, codes, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_32(q8_0);
