/* A float's bits as a whole number, and back. */
#ifndef OE_FLOAT_BITS_H
#define OE_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t oe_float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float oe_float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
