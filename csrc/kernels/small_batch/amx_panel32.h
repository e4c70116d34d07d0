/* panel32.h with AMX. */
#include "kernels/small_batch/packed.h"

#define K_BLOCK 32
#define K_TILE 32
#define TOGETHER 4
#define COLUMN_GROUPS 32
#define PACKS true

typedef oe_act_panel act_panel;

/* The whole sums of a step, by block, row of activations and lane, as tile_start makes them floats. */
typedef struct tile_dots {
    floats of[OE_CHUNK][16];
} tile_dots;

/* Sums start at the bits of 1.5 * 2^23, where a float's last bit is worth 1: adding up to 2^22 to the bits adds as much
 * to the float. (A sum is 2^19 at most.) While tiles are at work, a CPU converts and multiplies floats at half its rate
 * and adds them at the whole, so subtracting TILE_START is faster than converting. */
#define TILE_START 12582912.0f
#define BITS_4 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000
#define BITS_16 BITS_4, BITS_4, BITS_4, BITS_4
#define BITS_64 BITS_16, BITS_16, BITS_16, BITS_16
static const int32_t tile_start[16 * LANES] __attribute__((aligned(64))) = {BITS_64, BITS_64, BITS_64, BITS_64};

INLINE void multiply_block(const int b, const int8_t *q, const panel_block *x) {
    const int8_t *const rows = q + b / 2 * (32 * 64) + b % 2 * 32;
    if (b == 0) {
        _tile_loadd(0, tile_start, 64);
        _tile_loadd(4, rows, 64);
        _tile_loadd(6, x[0].codes, 64);
        _tile_dpbssd(0, 4, 6);
    } else if (b == 1) {
        _tile_loadd(1, tile_start, 64);
        _tile_loadd(5, rows, 64);
        _tile_loadd(7, x[1].codes, 64);
        _tile_dpbssd(1, 5, 7);
    } else if (b == 2) {
        _tile_loadd(2, tile_start, 64);
        _tile_loadd(4, rows, 64);
        _tile_loadd(6, x[2].codes, 64);
        _tile_dpbssd(2, 4, 6);
    } else {
        _tile_loadd(3, tile_start, 64);
        _tile_loadd(5, rows, 64);
        _tile_loadd(7, x[3].codes, 64);
        _tile_dpbssd(3, 5, 7);
    }
}

INLINE void store_block(const int b, tile_dots *to) {
    if (b == 0) {
        _tile_stored(0, to->of[0], 64);
    } else if (b == 1) {
        _tile_stored(1, to->of[1], 64);
    } else if (b == 2) {
        _tile_stored(2, to->of[2], 64);
    } else {
        _tile_stored(3, to->of[3], 64);
    }
}

/* sums[i] += the product of block `b` of a panel and row `i` of activations, for 16 rows from `from` on. */
INLINE void add_block_dots(const int b, const panel_block *x, const tile_dots *dots, const act_panel *act, int64_t from,
                           floats *sums) {
    const floats d = x[b].d;
#ifdef WITH_MINIMUM
    const floats minus_eighth = x[b].minus_eighth;
    const float *const minus8 = act->minus8[b] + from;
#endif
    const float *const act_d = act->d[b] + from;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        floats y = floats_multiply(d, floats_subtract(dots->of[b][i], floats_set(TILE_START)));
#ifdef WITH_MINIMUM
        y = floats_add(y, floats_multiply(minus_eighth, floats_set(minus8[i])));
#endif
        sums[i] = floats_add(sums[i], floats_multiply(y, floats_set(act_d[i])));
    }
}
