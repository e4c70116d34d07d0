/* Activations (activations.h) and what is computed on the way to them. Compiled once for each instruction set; plain C
 * is the twin that the others equal bit by bit. */
#include "kernels/small_batch/activations.h"

#include <math.h>

#include "base/pairs16.h"
#include "kernels/small_batch/round.h"

/* -- blocks -------------------------------------------------------------------------------------------------------- */

static void block256(const float *x, oe_act256 *act) {
    const float max = largest(x, 256);
    const float inverse = 127.0f / max; /* of 0 it is infinite, and all numbers become 0 */
    act->d = max > 0 ? 1.0f / inverse : 0.0f;
    for (int i = 0; i < 256; i += 16) {
        round16(x + i, inverse, act->q + i);
    }
    add_up_256(act);
}

static void block32(const float *x, oe_act32 *act) {
    const float max = largest(x, 32);
    const float inverse = max > 0 ? 127.0f / max : 0.0f;
    act->d = oe_f16_to_f32(f32_to_f16(max / 127.0f));
    round16(x, inverse, act->q);
    round16(x + 16, inverse, act->q + 16);
    const int32_t sum = sum_of_32(act->q);
    act->minus8 = -8 * sum;
    act->minus128 = -128 * sum;
}

void OE_SB_ACTS(quantize256)(const float *x, int64_t blocks, void *quad) {
    for (int64_t b = 0; b < blocks; b++) {
        block256(x + 256 * b, (oe_act256 *)quad + b);
    }
}

void OE_SB_ACTS(quantize32)(const float *x, int64_t blocks, void *quad) {
    for (int64_t b = 0; b < blocks; b++) {
        block32(x + 32 * b, (oe_act32 *)quad + b);
    }
}

void OE_SB_ACTS(copy16)(const float *x, int64_t blocks, void *quad) {
    memcpy(quad, x, OE_LANES * (size_t)blocks * sizeof *x);
}

void OE_SB_ACTS(round16)(const float *x, int64_t blocks, void *quad) {
    for (int64_t b = 0; b < blocks; b++) {
        bf16_of_16(x + OE_LANES * b, (uint16_t *)quad + OE_LANES * b);
    }
}

#define MOST_WHOLE 32767.0f
#define MOST_IN_ALL 131000.0f /* and half of 1 for each that is rounded, times weights of 16,376: below 2^31 */
#define LEAST_IN_ALL 1e-30f
#define LARGEST_IN_ALL 1e35f

void OE_SB_ACTS(whole16)(const float *x, int64_t blocks, void *quad) {
    oe_act_whole16 *const act = quad;
    lanes v[OE_QUAD], most = lanes_set(0), sum = most;
    for (int i = 0; i < OE_QUAD; i++) {
        v[i] = i < blocks ? lanes_load(x + (ptrdiff_t)i * OE_LANES) : lanes_set(0);
        const lanes size = lanes_signed_as(v[i], lanes_set(1.0f));
        most = lanes_max(size, most);
        sum = lanes_add(sum, size);
    }
    const float largest_one = lanes_largest(most), all = lanes_sum(sum);
    const float by_largest = MOST_WHOLE / largest_one, by_all = MOST_IN_ALL / all;
    const bool counts = all >= LEAST_IN_ALL && all <= LARGEST_IN_ALL;
    const float by = !counts ? 0.0f : by_largest < by_all ? by_largest : by_all;
    act->d = counts ? 1.0f / by : all < LEAST_IN_ALL ? 0.0f : NAN;
    for (int i = 0; i < OE_QUAD; i += 2) {
        pairs_store(act->q + (ptrdiff_t)i * OE_LANES, pairs_round(v[i], v[i + 1], lanes_set(by)));
    }
}

/* -- fused operations ---------------------------------------------------------------------------------------------- */

/* With e = exp(-|x|), silu(x) is x / (1 + e), or x * e / (1 + e) below 0: no exponential is above 1. */
static void swiglu(const float *gate, const float *up, int64_t n, float *to) {
    const lanes one = lanes_set(1.0f);
    for (int64_t i = 0; i < n; i += OE_LANES) {
        const lanes x = lanes_load(gate + i);
        const lanes e = lanes_exp(lanes_signed_as(x, lanes_set(-1.0f)));
        const lanes share = lanes_div(lanes_max(e, lanes_unless_below(x, 0.0f, one)), lanes_add(one, e));
        lanes_store(to + i, lanes_mul(lanes_mul(x, share), lanes_load(up + i)));
    }
}

#define SUMS 4 /* side by side, since each waits for the one before */

static float norm_factor(const float *x, int64_t n, float eps) {
    lanes sum[SUMS];
    for (int i = 0; i < SUMS; i++) {
        sum[i] = lanes_set(0.0f);
    }
    int64_t at = 0;
    for (; at + SUMS * OE_LANES <= n; at += SUMS * OE_LANES) {
#pragma GCC unroll 4
        for (int i = 0; i < SUMS; i++) {
            const lanes v = lanes_load(x + at + i * OE_LANES);
            sum[i] = lanes_fma(v, v, sum[i]);
        }
    }
    for (; at < n; at += OE_LANES) {
        const lanes v = lanes_load(x + at);
        sum[0] = lanes_fma(v, v, sum[0]);
    }
    const float total = lanes_sum(lanes_add(lanes_add(sum[0], sum[1]), lanes_add(sum[2], sum[3])));
    return 1.0f / sqrtf(total / (float)n + eps);
}

static void scale(const float *x, float factor, const float *weight, int64_t n, float *to) {
    const lanes by = lanes_set(factor);
    for (int64_t i = 0; i < n; i += OE_LANES) {
        lanes_store(to + i, lanes_mul(lanes_mul(lanes_load(x + i), by), lanes_load(weight + i)));
    }
}

const oe_sb_fused OE_SB_ACTS(fused) = {swiglu, norm_factor, scale};
