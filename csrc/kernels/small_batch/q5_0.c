/* Q5_0: 32 weights in 22 bytes: f16 d, the fifth bits of the codes in 4 bytes, their other 4 bits in 16 bytes. A weight
 * is d * (code - 16). */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 22
#define ABOVE 16

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

static void read_codes(const uint8_t *block, int8_t code[32]) {
    oe_sb_codes_of_4_bits(block + 6, code);
    oe_sb_add_fifth_bits(block + 2, code);
}
#else
#include "kernels/small_batch/tile_sums.h"

INLINE void read_codes(window w, ints codes[8]) {
    ints head[4];
    load_words(w, 0, head);
    load_codes_of_4_bits(w, 6, codes);
    add_fifth_bits(ints_or(ints_shift_right(head[0], 16), ints_shift_left(head[1], 16)), codes);
}
#endif

#include "kernels/small_batch/factor_and_offset.h"

OE_SB_DEFINE_32(q5_0);
