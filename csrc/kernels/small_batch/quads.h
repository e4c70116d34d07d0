/* Layout of quantized activations for the kernels: blocks in fours ("quads"). */
#ifndef OE_SB_QUADS_H
#define OE_SB_QUADS_H

#include <stdbool.h>
#include <string.h>

#include "kernels/small_batch/activations.h"

typedef union oe_quad {
    oe_act256 of_256[OE_QUAD];
    oe_act32 of_32[OE_QUAD];
    char bytes[OE_QUAD * sizeof(oe_act256)];
} oe_quad;

static inline int64_t oe_quads_of(const oe_sb_kernel *kernel, int64_t k) {
    return (k / kernel->block + OE_QUAD - 1) / OE_QUAD;
}

static inline size_t oe_quad_bytes(const oe_sb_kernel *kernel) { return OE_QUAD * kernel->act_bytes; }

/* Bytes of rows of activations, and of what kernels read behind the last. */
static inline int64_t oe_acts_bytes(const oe_sb_kernel *kernel, int64_t k, int64_t rows) {
    return (oe_quads_of(kernel, k) * rows + OE_SB_ROWS_BEHIND) * (int64_t)oe_quad_bytes(kernel);
}

/* Quantizes up to four blocks of x; missing ones become 0. */
static inline void oe_quad_quantize(const oe_sb_kernel *kernel, const float *x, int64_t blocks, oe_quad *quad) {
    if (blocks < OE_QUAD) {
        memset(quad, 0, sizeof *quad);
    }
    kernel->quantize(x, blocks < OE_QUAD ? blocks : OE_QUAD, quad->bytes);
}

/* Copies a quad to its place in the kernel's activations. For multiply_interleaved, the words of the four blocks are
 * interleaved, but the first kernel->whole bytes of each come one block after the other. */
static inline void oe_quad_store(const oe_sb_kernel *kernel, const oe_quad *quad, bool interleaved, char *to) {
    if (!interleaved) {
        memcpy(to, quad->bytes, oe_quad_bytes(kernel));
        return;
    }
    const size_t whole = (size_t)oe_sb_kernel_for(kernel, 1)->whole;
    for (size_t b = 0; whole > 0 && b < OE_QUAD; b++) {
        memcpy(to + b * whole, quad->bytes + b * kernel->act_bytes, whole);
    }
    for (size_t at = whole; at < kernel->act_bytes; at += 4) {
        for (size_t b = 0; b < OE_QUAD; b++) {
            memcpy(to + at * OE_QUAD + 4 * b, quad->bytes + b * kernel->act_bytes + at, 4);
        }
    }
}

/* Puts quad `number` of a row where it belongs in activations of so many rows. In tiles (oe_act_tile) the rows of a
 * tile come before those of the next, and of these the first 64 bytes of each row, then the second. */
static inline void oe_quad_put(const oe_sb_kernel *kernel, const oe_quad *quad, bool interleaved, int64_t quads,
                               int64_t rows, int64_t number, int64_t row, char *acts) {
    const size_t bytes = oe_quad_bytes(kernel);
    if (!kernel->in_tiles) {
        oe_quad_store(kernel, quad, interleaved, acts + (size_t)(number * rows + row) * bytes);
        return;
    }
    const oe_act_tile tile = oe_act_tile_of(rows, row);
    char *to = acts + (size_t)(tile.first * quads + number * tile.rows) * bytes + (size_t)(row - tile.first) * 64;
    for (size_t at = 0; at < bytes; at += 64, to += tile.rows * 64) {
        memcpy(to, quad->bytes + at, 64);
    }
}

#endif
