/* Sums in 16 lanes: the compiler makes vectors of them, and the bits are the same with each instruction set. */
#ifndef OE_LANES16_H
#define OE_LANES16_H

#include <stdint.h>

#define OE_LANES 16

/* The sum of the lanes, in pairs. */
static inline float oe_sum_lanes(float *lanes) {
    for (int half = OE_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            lanes[l] += lanes[l + half];
        }
    }
    return lanes[0];
}

#endif
