/* Panels (panel_product.h, amx_product.h) of weights in blocks of 256 with whole factors for parts of 16 or 32. A file
 * defines before it includes this:
 *
 *      BLOCK_BYTES, act_block (oe_act256)
 *      PART_WORDS     words of 4 codes that share a factor: 4 or 8
 *      MOST           the largest code that unpack_block reads, which has no sign yet
 *      WITH_MINIMA    1: a block is d * sum - dmin * (minima times the sums of activations); 0: d * sum
 *
 * and behind it, where PANELS is defined then, INLINE void unpack_block(window w, panel_block *x), which calls put_part
 * for each part, put_minima or put_factor, and signed_codes for codes that are above what counts. */
#define FACTORS (64 / PART_WORDS)
#define PAIRS (FACTORS / 2)
#define PART_SUMS(act) (PART_WORDS == 8 ? (act)->sum32 : (act)->sum16)

#if defined(OE_SB_TILES)
#define PANELS
#include "kernels/small_batch/amx_panel256.h"
#elif LANES == 16
#define PANELS
#include "kernels/small_batch/vnni_panel256.h"
#elif LANES == 8 && !defined(OE_NEON) && !HAS_VNNI && MOST < 128
#define PANELS
#include "kernels/small_batch/avx2_panel256.h"
#endif
