/* Compiled once for each instruction set; OE_LOGIT_KERNELS is the name of its table. */
#include "sample/logit_blocks.h"

#include <float.h>

/* -- rows ---------------------------------------------------------------------------------------------------------- */

static void largest_allowed(const float *restrict x, uint64_t allowed, float *restrict four) {
    float kept[OE_BLOCK];
    if (!allowed) {
        four[0] = four[1] = four[2] = four[3] = -INFINITY;
    } else if (allowed == ~(uint64_t)0) {
        oe_block_largest(x, four);
    } else {
        oe_block_keep(x, allowed, kept);
        oe_block_largest(kept, four);
    }
}

/* As block_largest, for n_blocks blocks of a row with a mask; returns how many entries are allowed. */
static int32_t blocks_allowed(const oe_logits *row, int32_t first, int32_t n_blocks, float *restrict four) {
    float padded[OE_BLOCK];
    int32_t count = 0;
    for (int32_t k = 0; k < n_blocks; k++) {
        const uint64_t allowed = oe_allowed(row->mask, row->n, first + k);
        largest_allowed(oe_padded_block(row->x, row->n, first + k, padded), allowed, four + 4 * k);
        count += __builtin_popcountll(allowed);
    }
    return count;
}

/* Whether no entry is NaN or +inf, for which alone !(x <= FLT_MAX) holds. Such an entry makes its sum NaN or +inf too;
 * so may an overflow, and then the entries decide. */
static bool is_sound(const float *restrict sum, const float *restrict x, int32_t n) {
    int suspect = 0, bad = 0;
    for (int j = 0; j < LANES; j++) {
        suspect |= !(sum[j] <= FLT_MAX);
    }
    for (int32_t i = 0; suspect && i < n; i++) {
        bad |= !(x[i] <= FLT_MAX);
    }
    return !bad;
}

/* As block_largest, for the blocks of a row without a mask. */
INLINE void blocks_largest(const float *x, int32_t n, int32_t first, int32_t n_blocks, float *restrict four) {
    float padded[OE_BLOCK];
    for (int32_t k = 0; k < n_blocks; k++) {
        oe_block_largest(oe_padded_block(x, n, first + k, padded), four + 4 * k);
    }
}

static int32_t scan(const float *x, int32_t n, const uint32_t *mask, float *block_max) {
    const oe_logits row = {x, mask, NULL, n};
    const int32_t blocks = oe_block_count(n);
    float sum[LANES] = {0}, four[4 * CHUNK] = {0}, largest[CHUNK];
    int32_t b = 0, count = mask ? 0 : n;
    for (; !mask && (b + CHUNK) * OE_BLOCK <= n; b += CHUNK) { /* bounds that are constants: 1.2 times as fast */
#pragma GCC unroll 1 /* 16 copies of the body are slower where rows come from memory */
        for (int32_t k = 0; k < CHUNK; k++) {
            oe_block_largest(x + (b + k) * OE_BLOCK, four + 4 * k);
            oe_add_entries(x + (b + k) * OE_BLOCK, OE_BLOCK, sum);
        }
        oe_chunk_maxima(four, block_max + b);
    }
    for (; b < blocks; b += CHUNK) {
        const int32_t left = n - b * OE_BLOCK, size = blocks - b < CHUNK ? blocks - b : CHUNK;
        if (mask) {
            count += blocks_allowed(&row, b, size, four);
        } else {
            blocks_largest(x, n, b, size, four);
        }
        oe_add_entries(x + b * OE_BLOCK, left < CHUNK * OE_BLOCK ? left : CHUNK * OE_BLOCK, sum);
        oe_chunk_maxima(four, largest);
        memcpy(block_max + b, largest, (size_t)size * sizeof *largest);
    }
    return is_sound(sum, x, n) ? count : -1;
}

static void column_maxima(const oe_logits *row, int32_t first, int32_t stride, float *restrict max) {
    float copy[OE_BLOCK];
    for (int j = 0; j < OE_BLOCK; j++) {
        max[j] = -INFINITY;
    }
    for (int32_t b = first; b < oe_block_count(row->n); b += stride) {
        const float *x = oe_block_of(row, b, copy);
        for (int j = 0; j < OE_BLOCK; j++) {
            max[j] = x[j] > max[j] ? x[j] : max[j];
        }
    }
}

static uint64_t above(const oe_logits *row, int32_t block, float least) {
    float copy[OE_BLOCK];
    uint8_t flag[OE_BLOCK];
    const float *x = oe_block_of(row, block, copy);
    for (int j = 0; j < OE_BLOCK; j++) {
        flag[j] = x[j] > least;
    }
    return oe_bits_of(flag);
}

static void weigh(const float *x, oe_scale scale, uint32_t *rank, uint64_t *weight) {
    oe_block_weigh(x, scale, rank, weight);
}

static oe_weights sum(const oe_logits *row, oe_scale scale, uint32_t keep, oe_window window, int shift,
                      uint64_t (*bins)[OE_BIN_COPIES]) {
    const oe_window weighty = {0, 29 * OE_RANK_ONE}; /* exp(-29) * 2^40 = 0.28 rounds to 0, and so does all beyond */
    float copy[OE_BLOCK];
    uint32_t rank[OE_BLOCK];
    uint64_t weight[OE_BLOCK];
    oe_weights sums = {0, 0};
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        if (oe_is_behind(row, b, scale, weighty)) {
            continue;
        }
        oe_block_weigh(oe_block_of(row, b, copy), scale, rank, weight);
        uint64_t total = 0, kept = 0;
        for (int j = 0; j < OE_BLOCK; j++) {
            total += weight[j];
            kept += rank[j] <= keep ? weight[j] : 0;
        }
        sums.total += total;
        sums.kept += kept;
        if (bins && !oe_is_behind(row, b, scale, window)) {
            oe_block_bin(rank, weight, oe_ranks_members(rank, window), window, shift, bins);
        }
    }
    return sums;
}

static void bin(const oe_logits *row, oe_scale scale, oe_window window, int shift, uint64_t (*bins)[OE_BIN_COPIES]) {
    float copy[OE_BLOCK];
    uint32_t rank[OE_BLOCK];
    uint64_t weight[OE_BLOCK];
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        if (oe_is_behind(row, b, scale, window)) {
            continue;
        }
        const float *x = oe_block_of(row, b, copy);
        const uint64_t members = oe_block_members(x, scale, window);
        if (members) {
            oe_block_weigh(x, scale, rank, weight);
            oe_block_bin(rank, weight, members, window, shift, bins);
        }
    }
}

static oe_extent extent(const oe_logits *row, oe_scale scale, oe_window window) {
    float copy[OE_BLOCK], low[LANES], high[LANES];
    oe_extent found = {0, INFINITY, -INFINITY};
    for (int j = 0; j < LANES; j++) {
        low[j] = INFINITY;
        high[j] = -INFINITY;
    }
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        if (oe_is_behind(row, b, scale, window)) {
            continue;
        }
        const float *x = oe_block_of(row, b, copy);
        for (int i = 0; i < OE_BLOCK; i += LANES) {
            for (int j = 0; j < LANES; j++) {
                const bool is = oe_is_member(oe_rank(x[i + j], scale), window);
                const float least = is ? x[i + j] : INFINITY, most = is ? x[i + j] : -INFINITY;
                low[j] = least < low[j] ? least : low[j];
                high[j] = most > high[j] ? most : high[j];
                found.count += is;
            }
        }
    }
    for (int j = 0; j < LANES; j++) {
        found.low = low[j] < found.low ? low[j] : found.low;
        found.high = high[j] > found.high ? high[j] : found.high;
    }
    return found;
}

static int32_t pick(const oe_logits *row, oe_scale scale, oe_window window, int32_t *block, int32_t *at, int32_t room) {
    float copy[OE_BLOCK];
    int32_t found = 0, b = *block;
    for (; b < oe_block_count(row->n) && found <= room - OE_BLOCK; b++) {
        if (oe_is_behind(row, b, scale, window)) {
            continue;
        }
        uint64_t members = oe_block_members(oe_block_of(row, b, copy), scale, window);
        for (; members; members &= members - 1) {
            const int32_t i = b * OE_BLOCK + __builtin_ctzll(members);
            if (i < row->n) {
                at[found++] = i;
            }
        }
    }
    *block = b;
    return found;
}

static oe_surprise surprise(const oe_logits *row, oe_scale scale) {
    float copy[OE_BLOCK];
    uint32_t rank[OE_BLOCK];
    uint64_t weight[OE_BLOCK];
    oe_surprise sums = {0, 0, 0};
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        const float *x = oe_block_of(row, b, copy);
        uint64_t total = 0, distance = 0;
        uint32_t count = 0;
        oe_block_weigh(x, scale, rank, weight);
        for (int j = 0; j < OE_BLOCK; j++) {
            total += weight[j];
            distance += oe_weighted_distance(rank[j], weight[j]);
        }
        for (int j = 0; j < OE_BLOCK; j++) {
            count += x[j] > -INFINITY;
        }
        sums.count += (int32_t)count;
        sums.total += total;
        sums.distance += distance;
    }
    return sums;
}

static float least(const oe_logits *row) {
    float copy[OE_BLOCK], low[LANES], found = INFINITY;
    for (int j = 0; j < LANES; j++) {
        low[j] = INFINITY;
    }
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        const float *x = oe_block_of(row, b, copy);
        for (int i = 0; i < OE_BLOCK; i += LANES) {
            for (int j = 0; j < LANES; j++) {
                const float entry = x[i + j] > -INFINITY ? x[i + j] : INFINITY;
                low[j] = entry < low[j] ? entry : low[j];
            }
        }
    }
    for (int j = 0; j < LANES; j++) {
        found = low[j] < found ? low[j] : found;
    }
    return found;
}

static oe_moments moments(const oe_logits *row, float max, double factor) {
    float copy[OE_BLOCK];
    uint32_t step[OE_BLOCK];
    oe_moments sums = {0, 0, 0, 0};
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        const float *x = oe_block_of(row, b, copy);
        uint64_t sum = 0, low = 0, high = 0;
        uint32_t count = 0;
        for (int j = 0; j < OE_BLOCK; j++) {
            const uint32_t is = x[j] > -INFINITY;
            step[j] = oe_step_of(is ? x[j] : max, max, factor);
            count += is;
        }
        for (int j = 0; j < OE_BLOCK; j++) {
            const uint64_t square = (uint64_t)step[j] * step[j];
            sum += step[j];
            low += square & 0xffffffffu;
            high += square >> 32;
        }
        sums.count += (int32_t)count;
        sums.sum += sum;
        sums.squares_low += low;
        sums.squares_high += high;
    }
    return sums;
}

static int32_t nth(const oe_logits *row, oe_scale scale, oe_window window, int32_t n) {
    float copy[OE_BLOCK];
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        if (oe_is_behind(row, b, scale, window)) {
            continue;
        }
        uint64_t members = oe_block_members(oe_block_of(row, b, copy), scale, window);
        const int32_t count = __builtin_popcountll(members);
        if (n >= count) {
            n -= count;
            continue;
        }
        for (; n > 0; n--) {
            members &= members - 1;
        }
        const int32_t i = b * OE_BLOCK + __builtin_ctzll(members);
        return i < row->n ? i : -1;
    }
    return -1;
}

extern const oe_logit_kernels OE_LOGIT_KERNELS;
const oe_logit_kernels OE_LOGIT_KERNELS = {scan, column_maxima, above, weigh, sum, bin, extent, pick, surprise,
                                           least, moments, nth};
