/* Panels (panel_product.h, amx_product.h) of weights in blocks of 32: signed codes and their factor. A file defines
 * BLOCK_BYTES, act_block (oe_act32) and, for types with a minimum (lanes.h, add_scaled_from), WITH_MINIMUM before it
 * includes this, and behind it, where PANELS is defined then, INLINE void unpack_block(window w, panel_block *x). */
typedef struct panel_block {
    ints codes[8];
    floats d;
#ifdef WITH_MINIMUM
    floats minus_eighth;
#endif
} panel_block;

#if defined(OE_SB_TILES)
#define PANELS
#include "kernels/small_batch/amx_panel32.h"
#elif LANES == 16
#define PANELS
#include "kernels/small_batch/vnni_panel32.h"
#endif
