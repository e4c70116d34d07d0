/* MXFP4 (Open Compute Project, Microscaling Formats 2023): 32 weights in 17 bytes: an exponent e of 8 bits, 32 numbers
 * of 4 bits, E2M1. A weight is 2^(e - 127) times its number. Codes here are twice the numbers, so that they are whole;
 * d is half of the power of 2. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 17

typedef oe_act32 act_block;

static const int8_t TWICE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

typedef oe_sb_block32 weight_block;

static float half_power(uint8_t exponent) {
    return oe_float_of_bits(exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23);
}

static void unpack(const uint8_t *p, weight_block *x) {
    x->d = half_power(p[0]);
    for (int i = 0; i < 16; i++) {
        x->code[i] = TWICE[p[1 + i] & 15];
        x->code[16 + i] = TWICE[p[1 + i] >> 4];
    }
}

#define product oe_sb_block32_product
#include "kernels/small_batch/scalar_product.h"
#else
#include "kernels/small_batch/tile_sums.h"

/* Of an exponent shifted left by 21. The least two powers are subnormal: 2^21 and 2^22 in bits, as exponent + 1 is. */
INLINE floats half_power(ints exponent) {
    const ints usual = ints_subtract(ints_shift_left(exponent, 2), ints_set(1 << 23));
    return floats_from_bits(ints_larger(usual, ints_add(exponent, ints_set(1 << 21))));
}

/* Codes by `table`, which holds TWICE as it is or as ready_signed makes it. */
INLINE void read_codes(window w, ints table, ints *codes) {
    load_picked_codes(w, 1, table, codes);
}

INLINE floats read_factor(window w) {
#ifdef ROWS_OF_FOURS
    if (w.in_fours) {
        return half_power(load_first_of_fours(w));
    }
#endif
    return half_power(ints_shift_left(byte_of(load_word(w, 0), 0), 21));
}

#include "kernels/small_batch/panel32.h"

#ifdef PANELS
INLINE void unpack_block(window w, panel_block *x) {
    x->d = read_factor(w);
    read_codes(w, ints_repeat(TWICE), x->codes);
}
#endif

#ifdef OE_SB_TILES
#include "kernels/small_batch/amx_product.h"
#else

INLINE void add_block(const bool fours, const int n_tile, window w, const act_block *act, floats *out) {
    fetch_part(w, BLOCK_BYTES, 0, 1);
    const floats d = read_factor(w);
    ints codes[8];
    read_codes(w, ready_signed(ints_repeat(TWICE)), codes);
    add_signed_block(fours, n_tile, 12, d, codes, act, out);
}

#include "kernels/small_batch/vector_product.h"
#endif
#endif

OE_SB_DEFINE_32(mxfp4);
