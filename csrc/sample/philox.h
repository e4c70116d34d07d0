/* Philox4x32-10, a counter-based random generator: the n-th number of a stream is a function of (key, n) alone, so a
 * sequence draws the same tokens in any batch, and a copy of a sampler is a copy of one integer.
 * Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef OE_PHILOX_H
#define OE_PHILOX_H

#include <stdint.h>

/* The random numbers of one draw: 64 bits to draw with, and 64 for XTC. */
typedef struct oe_philox_draw {
    uint64_t first, second;
} oe_philox_draw;

/* The block of the stream `key` with counter (index, 0). */
static inline oe_philox_draw oe_philox(uint64_t key, uint64_t index) {
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0];
        const uint64_t b = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                                  (uint32_t)a};
        for (int i = 0; i < 4; i++) {
            c[i] = next[i];
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (oe_philox_draw){(uint64_t)c[1] << 32 | c[0], (uint64_t)c[3] << 32 | c[2]};
}

#endif
