/* Panels (amx_product.h) of weights in blocks of 32: signed codes and their factor. A step takes two blocks. A file
 * defines BLOCK_BYTES, act_block (oe_act32) and, for types with a minimum (lanes.h, add_scaled_from), WITH_MINIMUM
 * before it includes this, and behind it INLINE void unpack_block(window w, panel_block *x). */
#include "kernels/small_batch/panel.h"

#define K_BLOCK 32
#define K_TILE 32
#define STEP 2
#define TOGETHER 4

typedef struct panel_block {
    ints codes[8];
    floats d;
#ifdef WITH_MINIMUM
    floats minus_eighth;
#endif
} panel_block;

typedef struct panel_scales {
    floats d[STEP];
#ifdef WITH_MINIMUM
    floats minus_eighth[STEP];
#endif
} panel_scales;

INLINE panel_scales scales_of(const panel_block *x) {
#ifdef WITH_MINIMUM
    return (panel_scales){{x[0].d, x[1].d}, {x[0].minus_eighth, x[1].minus_eighth}};
#else
    return (panel_scales){{x[0].d, x[1].d}};
#endif
}

INLINE void multiply_part(const int halves, const int s, const oe_act32 *act, size_t stride, const panel_block *x) {
    if (s == 0) {
        _tile_zero(0);
        _tile_loadd(4, act[0].q, stride);
        _tile_loadd(6, x[0].codes, 64);
        _tile_dpbssd(0, 4, 6);
    } else if (s == 1) {
        _tile_zero(2);
        _tile_loadd(5, act[1].q, stride);
        _tile_loadd(7, x[1].codes, 64);
        _tile_dpbssd(2, 5, 7);
    } else if (s == 2 && halves == 2) {
        _tile_zero(1);
        _tile_loadd(4, (const char *)act[0].q + 16 * stride, stride);
        _tile_dpbssd(1, 4, 6);
    } else if (halves == 2) {
        _tile_zero(3);
        _tile_loadd(5, (const char *)act[1].q + 16 * stride, stride);
        _tile_dpbssd(3, 5, 7);
    }
}

INLINE void add_dots(const panel_scales *x, const tile_dots *dots, int64_t i, const oe_act32 *act, bool first,
                     floats *out, int64_t to_next_sum) {
#pragma GCC unroll 2
    for (int b = 0; b < STEP; b++, act++, out += to_next_sum) {
        const ints dot = _mm512_load_si512(dots->of[b][i]);
        *out = sum_before(first, out);
#ifdef WITH_MINIMUM
        add_scaled_from(false, x->d[b], dot, x->minus_eighth[b], act, out);
#else
        add_scaled(false, floats_multiply(x->d[b], floats_from_ints(dot)), &act->d, act, out);
#endif
    }
}
