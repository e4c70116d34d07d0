/* small_batch_floats.h in plain C, which the kernels with vectors must equal bit by bit. */
#include "kernels/small_batch.h"

#include <math.h>
#include <string.h>

#include "base/f16.h"

void oe_sb_copy16(const float *x, void *act) { memcpy(act, x, 16 * sizeof *x); }

typedef struct vec16 {
    float at[16];
} vec16;

static vec16 zeros16(void) { return (vec16){{0}}; }

static vec16 floats16(const float *x) {
    vec16 to;
    memcpy(&to, x, sizeof to);
    return to;
}

static vec16 halves16(const void *x) {
    uint16_t halves[16];
    vec16 to;
    memcpy(halves, x, sizeof halves);
    for (int i = 0; i < 16; i++) {
        to.at[i] = oe_f16_to_f32(halves[i]);
    }
    return to;
}

static vec16 bfloats16(const void *x) {
    uint16_t upper[16];
    vec16 to;
    memcpy(upper, x, sizeof upper);
    for (int i = 0; i < 16; i++) {
        const uint32_t bits = (uint32_t)upper[i] << 16;
        memcpy(&to.at[i], &bits, sizeof bits);
    }
    return to;
}

static vec16 add_product16(vec16 sum, vec16 x, vec16 y) {
    for (int i = 0; i < 16; i++) {
        sum.at[i] = fmaf(x.at[i], y.at[i], sum.at[i]);
    }
    return sum;
}

static float total16(vec16 x) {
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            x.at[i] += x.at[i + half];
        }
    }
    return x.at[0];
}

#define TILE 3
#define TILE_WEIGHTS 1
#define KERNELS oe_sb_floats_scalar
#include "kernels/small_batch_floats.h"
