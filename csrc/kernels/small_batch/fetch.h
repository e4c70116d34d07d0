/* Fetching weights before they are read (oe_sb_fetch). INLINE comes from the file that includes this. */
#ifndef OE_SB_FETCH_H
#define OE_SB_FETCH_H

#include "kernels/small_batch/kernel.h"

/* Fetches lines first .. last - 1. */
INLINE void fetch_lines(const uint8_t *from, size_t first, size_t last, oe_sb_fetch by) {
    if (by == OE_SB_FETCH_L2) {
#pragma GCC unroll 16
        for (size_t i = first; i < last; i++) {
            __builtin_prefetch(from + 64 * i, 0, 2);
        }
    } else if (by == OE_SB_FETCH_DEEP) {
#pragma GCC unroll 16
        for (size_t i = first; i < last; i++) { /* by turns: one kind after the other is slower */
            __builtin_prefetch(from + 64 * i, 0, 0);
            __builtin_prefetch(from + 64 * i + OE_SB_DEEPER, 0, 0);
        }
    } else {
#pragma GCC unroll 16
        for (size_t i = first; i < last; i++) {
            __builtin_prefetch(from + 64 * i);
        }
    }
}

#endif
