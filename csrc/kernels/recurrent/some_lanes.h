/* The first lanes of a vector alone, where channels or columns end within it. */
#ifndef OE_RECURRENT_SOME_LANES_H
#define OE_RECURRENT_SOME_LANES_H

#include <string.h>

#include "base/simd16.h"

/* The first `count` lanes; the others are 0. */
INLINE lanes load_some(const float *p, int64_t count) {
    if (count >= OE_LANES) {
        return lanes_load(p);
    }
    float padded[OE_LANES] = {0};
    memcpy(padded, p, (size_t)count * sizeof *p);
    return lanes_load(padded);
}

INLINE void store_some(float *p, int64_t count, lanes x) {
    if (count >= OE_LANES) {
        lanes_store(p, x);
        return;
    }
    float padded[OE_LANES];
    lanes_store(padded, x);
    memcpy(p, padded, (size_t)count * sizeof *p);
}

#endif
