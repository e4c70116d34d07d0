/* Q4_1: 32 weights in 20 bytes: f16 d, f16 m, 32 codes of 4 bits. A weight is d * code + m. */
#include "kernels/small_batch/activations.h"

#define BLOCK_BYTES 20
#define MOST 15

typedef oe_act32 act_block;

#ifdef OE_SB_SCALAR
#include "kernels/small_batch/scalar.h"

static void read_codes(const uint8_t *block, int8_t code[32]) { oe_sb_codes_of_4_bits(block + 4, code); }
#else
#include "kernels/small_batch/tile_sums.h"

INLINE void read_codes(window w, ints codes[8]) { load_codes_of_4_bits(w, 4, codes); }
#endif

#include "kernels/small_batch/factor_and_minimum.h"

OE_SB_DEFINE_32(q4_1);
