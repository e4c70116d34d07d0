/* Activations in blocks of 32 as AMX's tiles read them (amx_steps32.h): in panels of OE_CHUNK blocks and 32 rows. The
 * blocks of a panel are added to the same of the sums s0 to s3 (kernel.h), so they are OE_QUAD apart. Panels are in the
 * order of the sums, those of a sum in the order of blocks, and 32 rows come after the other. */
#ifndef OE_SB_PACKED_H
#define OE_SB_PACKED_H

#include <string.h>

#include "kernels/small_batch/activations.h"

#define OE_CHUNK 4

typedef struct oe_act_panel {
    int8_t q[OE_CHUNK / 2][32][2][32]; /* pair of blocks, row, block of the pair: rows of tiles are 64 bytes apart */
    float d[OE_CHUNK][32];
    float minus8[OE_CHUNK][32];
} oe_act_panel;

/* Chunks of the sums before `sum`, of rows of `blocks`. */
static inline int64_t oe_chunks_before(int64_t blocks, int64_t sum) {
    int64_t n = 0;
    for (int64_t s = 0; s < sum && s < blocks; s++) {
        n += (blocks - s + OE_CHUNK * OE_QUAD - 1) / (OE_CHUNK * OE_QUAD);
    }
    return n;
}

static inline int64_t oe_chunks(int64_t blocks) { return oe_chunks_before(blocks, OE_QUAD); }

static inline int64_t oe_chunk_of(int64_t blocks, int64_t block) {
    return oe_chunks_before(blocks, block % OE_QUAD) + block / (OE_CHUNK * OE_QUAD);
}

/* Puts blocks OE_QUAD * number .. OE_QUAD * number + 3 of a row, as far as they are, into the panels of its 32 rows. */
static inline void oe_pack_quad(const oe_act32 *quad, int64_t blocks, int64_t number, int64_t row,
                                oe_act_panel *panels) {
    const int64_t b = number % OE_CHUNK;
    for (int64_t s = 0; s < OE_QUAD && number * OE_QUAD + s < blocks; s++) {
        oe_act_panel *const to = panels + oe_chunks_before(blocks, s) + number / OE_CHUNK;
        memcpy(to->q[b / 2][row][b % 2], quad[s].q, sizeof quad[s].q);
        to->d[b][row] = quad[s].d;
        to->minus8[b][row] = (float)quad[s].minus8;
    }
}

/* Makes the factors of row .. 31 zero: vectors multiply by them, and what lies there by chance may be subnormal and
 * slow. The results are not stored. */
static inline void oe_pack_zeros(int64_t blocks, int64_t row, oe_act_panel *panels) {
    for (oe_act_panel *to = panels; to < panels + oe_chunks(blocks); to++) {
        for (int64_t b = 0; b < OE_CHUNK; b++) {
            memset(to->d[b] + row, 0, (size_t)(32 - row) * sizeof(float));
            memset(to->minus8[b] + row, 0, (size_t)(32 - row) * sizeof(float));
        }
    }
}

#endif
