#include "kernels/iq4_nl_rows.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/float_bits.h"
#include "base/target_clones.h"
#include "ggml.h"

#define BLOCK 32
#define GROUP 8      /* blocks whose sums are added side by side: one alone waits for each addition */
#define LEAST 1e-15f /* ggml's: the scale of a smaller block is 0 */
#define LOWEST -127

typedef struct block {
    uint16_t scale;
    uint8_t codes[BLOCK / 2];
} block;

/* The levels are those of small_batch/iq4_levels.h. A number halfway between two, exact in a float, takes the upper. */
static const float HALFWAY[15] = {-115.5f, -93.5f, -74, -57, -42, -28.5f, -16, -4.5f, 7, 19, 31.5f, 45.5f, 61, 79, 101};
static const int32_t STEPS[15] = {23, 21, 18, 16, 14, 13, 12, 11, 12, 12, 13, 15, 16, 20, 24};

/* ggml is built for a baseline; that of ARM64 has FMA, and its compilers use it here. */
#ifdef __aarch64__
#define ADD_PRODUCT(a, b, sum) fmaf(a, b, sum)
#else
#define ADD_PRODUCT(a, b, sum) ((sum) + (a) * (b))
#endif

/* Of the largest numbers by size the first, with its sign; 0 if all are 0 or NaN. */
static inline float extreme(const float *x) {
    int32_t largest = 0, first = BLOCK;
    for (int j = 0; j < BLOCK; j++) {
        const int32_t size = (int32_t)(oe_float_bits(x[j]) & INT32_MAX), number = size > 0x7f800000 ? 0 : size;
        largest = number > largest ? number : largest;
    }
    for (int j = 0; j < BLOCK; j++) {
        const int32_t at = (int32_t)(oe_float_bits(x[j]) & INT32_MAX) == largest ? j : BLOCK;
        first = at < first ? at : first;
    }
    return first < BLOCK ? x[first] : 0.0f;
}

/* The nearest levels to scale * x, and their codes. As in ggml, NaN takes the highest. */
static inline void find_levels(const float *x, float scale, float *levels, int32_t *codes) {
    for (int j = 0; j < BLOCK; j++) {
        const float at = scale * x[j];
        int32_t level = LOWEST, code = 0;
#pragma GCC unroll 15
        for (int k = 0; k < 15; k++) {
            level += at < HALFWAY[k] ? 0 : STEPS[k];
            code += at < HALFWAY[k] ? 0 : 1;
        }
        levels[j] = (float)level;
        codes[j] = code;
    }
}

/* As ggml's quantize_row_iq4_nl: the largest number becomes the lowest level, then the scale is that of the smallest
 * error, weighted by x^2, for the levels so chosen. `count`: blocks, up to GROUP. */
OE_TARGET_CLONES
static void write_blocks(const float *x, int count, char *to) {
    float levels[GROUP][BLOCK], weighted[GROUP][BLOCK], numbers[GROUP][BLOCK];
    float extremes[GROUP], products[GROUP] = {0}, squares[GROUP] = {0};
    block made[GROUP];
    if (count < GROUP) { /* all are added up */
        memset(numbers, 0, sizeof numbers);
        memset(levels, 0, sizeof levels);
        memset(weighted, 0, sizeof weighted);
    }
    memcpy(numbers, x, (size_t)count * sizeof numbers[0]);
    for (int g = 0; g < count; g++) {
        int32_t codes[BLOCK];
        extremes[g] = extreme(numbers[g]);
        find_levels(numbers[g], 1 / (extremes[g] / LOWEST), levels[g], codes);
        for (int j = 0; j < BLOCK; j++) {
            weighted[g][j] = numbers[g][j] * numbers[g][j] * levels[g][j];
        }
        for (int j = 0; j < BLOCK / 2; j++) {
            made[g].codes[j] = (uint8_t)(codes[j] | codes[j + BLOCK / 2] << 4);
        }
    }
    for (int j = 0; j < BLOCK; j++) {
        for (int g = 0; g < GROUP; g++) {
            products[g] = ADD_PRODUCT(weighted[g][j], numbers[g][j], products[g]);
            squares[g] = ADD_PRODUCT(weighted[g][j], levels[g][j], squares[g]);
        }
    }
    for (int g = 0; g < count; g++) {
        const int counts = fabsf(extremes[g]) >= LEAST && squares[g] > 0;
        made[g].scale = ggml_fp32_to_fp16(counts ? products[g] / squares[g] : 0.0f);
    }
    memcpy(to, made, (size_t)count * sizeof made[0]);
}

void oe_iq4_nl_rows_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    const struct ggml_tensor *rows = dst->src[1], *index = dst->src[2];
    const int64_t blocks = rows->ne[0] / BLOCK, n = rows->ne[1];
    (void)unused;
    for (int64_t i = n * ith / nth; i < n * (ith + 1) / nth; i++) {
        const int64_t at =
            index->type == GGML_TYPE_I64 ? ((const int64_t *)index->data)[i] : ((const int32_t *)index->data)[i];
        const float *x = (const float *)((const char *)rows->data + (size_t)i * rows->nb[1]);
        char *to = (char *)dst->data + (size_t)at * dst->nb[1];
        for (int64_t b = 0; b < blocks; b += GROUP) {
            const int count = (int)(blocks - b < GROUP ? blocks - b : GROUP);
            write_blocks(x + b * BLOCK, count, to + (size_t)b * sizeof(block));
        }
    }
}
