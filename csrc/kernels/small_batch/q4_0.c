/* Q4_0: 32 weights in 18 bytes: f16 d, 32 codes of 4 bits. A weight is d * (code - 8). */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 18

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block32 weight_block;

static void unpack(const uint8_t *p, weight_block *x) {
    x->d = oe_sb_read_f16(p);
    for (int i = 0; i < 16; i++) {
        x->code[i] = (int8_t)((p[2 + i] & 15) - 8);
        x->code[16 + i] = (int8_t)((p[2 + i] >> 4) - 8);
    }
}

#define product oe_sb_block32_product
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/lanes.h"

INLINE void read_codes(window w, ints *codes) {
    ints words[4];
    load_words(w, 2, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        codes[i] = low_bits(words[i], 0, 0x0f);
        codes[4 + i] = low_bits(words[i], 4, 0x0f);
    }
}

#ifdef OE_SB_TILES
#include "kernels/small_batch/panel32.h"

INLINE void unpack_block(window w, panel_block *x) {
    x->d = read_half(w, 0);
    read_codes(w, x->codes);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        x->codes[i] = bytes_subtract(x->codes[i], bytes_set(8));
    }
}

#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool single, const int n_tile, window w, const act_block *act, floats *out) {
    fetch_part(w, BLOCK_BYTES, 0, 1);
    const floats d = read_half(w, 0);
    ints codes[8];
    read_codes(w, codes);
#pragma GCC unroll 8
    for (int n = 0; n < n_tile; n++) {
        const act_block *a = act + OE_QUAD * n;
        const ints dot = dot_32(single, 15, codes, act_word(single, &a->minus8, a), a);
        add_scaled(single, floats_multiply(d, floats_from_ints(dot)), &a->d, a, out + n);
    }
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_32(q4_0);
