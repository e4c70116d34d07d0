/* Q5_1: 32 weights in 24 bytes: f16 d, f16 m, the fifth bits of the codes in 4 bytes, their other 4 bits in 16 bytes. A
 * weight is d * code + m. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 24
#define MOST 31

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

static void read_codes(const uint8_t *block, int8_t code[32]) {
    oe_sb_codes_of_4_bits(block + 8, code);
    oe_sb_add_fifth_bits(block + 4, code);
}
#else
#include "kernels/small_batch/tile_sums.h"

INLINE void read_codes(window w, ints codes[8]) {
    load_codes_of_4_bits(w, 8, codes);
    if (w.in_fours) {
        add_fifth_bits(w, load_word(w, 4), codes);
    } else {
        ints head[4]; /* the first is that of the factors */
        load_words(w, 0, head);
        add_fifth_bits(w, head[1], codes);
    }
}
#endif

#include "kernels/small_batch/factor_and_minimum.h"

OE_SB_DEFINE_32(q5_1);
