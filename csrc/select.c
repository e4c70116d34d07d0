#include "select.h"

#include <float.h>
#include <math.h>

#include "bits.h"

#define LANES 16 /* independent maxima, so that the compiler needs no leave to reorder float operations */
#define COLUMNS 64 /* that are looked at together; at most 2 * OE_BLOCK, see oe_top_capacity */

/* Block maxima of whole blocks; not 0 when any entry is NaN or +inf, for which alone !(x <= FLT_MAX) holds. */
OE_CLONES
static int scan_blocks(const float *restrict x, int32_t blocks, float *restrict block_max) {
    int bad = 0;
    for (int32_t b = 0; b < blocks; b++, x += OE_BLOCK) {
        float max[LANES];
        for (int j = 0; j < LANES; j++) {
            const float p = x[j], q = x[j + LANES], r = x[j + 2 * LANES], s = x[j + 3 * LANES];
            bad |= !(p <= FLT_MAX) | !(q <= FLT_MAX) | !(r <= FLT_MAX) | !(s <= FLT_MAX);
            const float pq = p > q ? p : q, rs = r > s ? r : s;
            max[j] = pq > rs ? pq : rs;
        }
        for (int width = LANES / 2; width; width /= 2) {
            for (int j = 0; j < width; j++) {
                max[j] = max[j + width] > max[j] ? max[j + width] : max[j];
            }
        }
        block_max[b] = max[0];
    }
    return bad;
}

bool oe_row_scan(const float *x, int32_t n, float *block_max) {
    const int32_t whole = n / OE_BLOCK;
    int bad = scan_blocks(x, whole, block_max);
    if (n % OE_BLOCK) {
        float last[OE_BLOCK];
        for (int32_t i = 0; i < OE_BLOCK; i++) {
            last[i] = whole * OE_BLOCK + i < n ? x[whole * OE_BLOCK + i] : -INFINITY;
        }
        bad |= scan_blocks(last, 1, block_max + whole);
    }
    return !bad;
}

void oe_row_find_bad(const float *x, int32_t n, int32_t *first, int32_t *count) {
    *first = -1;
    *count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(x[i] <= FLT_MAX)) {
            *first = *count ? *first : i;
            *count += 1;
        }
    }
}

int32_t oe_row_best(const oe_row *row) {
    float best = -INFINITY;
    int32_t block = 0;
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        if (row->block_max[b] > best) {
            best = row->block_max[b];
            block = b;
        }
    }
    for (int32_t i = block * OE_BLOCK; best > -INFINITY && i < row->n; i++) {
        if (row->x[i] == best) {
            return i;
        }
    }
    return -1;
}

void oe_keys_select(uint64_t *keys, size_t n, size_t k) {
    /* Splits at the highest bit in which the keys differ: at most 64 rounds whatever the data, no pivot to get wrong.
     * The k-th largest stays within [low, high). */
    size_t low = 0, high = n;
    while (high - low > 1) {
        uint64_t all = ~(uint64_t)0, any = 0;
        for (size_t i = low; i < high; i++) {
            all &= keys[i];
            any |= keys[i];
        }
        const uint64_t bit = (uint64_t)1 << oe_bits_highest(all ^ any);
        size_t split = low;
        for (size_t i = low; i < high; i++) {
            const uint64_t key = keys[i];
            keys[i] = keys[split];
            keys[split] = key;
            split += (key & bit) != 0;
        }
        if (k <= split) {
            high = split;
        } else {
            low = split;
        }
    }
}

/* keys[g]: the largest entry of group g, in which blocks lie next to each other; how many groups there are. */
static size_t group_maxima(const oe_row *row, size_t most, uint64_t *keys) {
    const size_t blocks = (size_t)oe_block_count(row->n);
    const size_t per_group = (blocks + most - 1) / most;
    const size_t groups = (blocks + per_group - 1) / per_group;
    for (size_t g = 0; g < groups; g++) {
        const size_t end = (g + 1) * per_group < blocks ? (g + 1) * per_group : blocks;
        float max = -INFINITY;
        for (size_t b = g * per_group; b < end; b++) {
            max = row->block_max[b] > max ? row->block_max[b] : max;
        }
        keys[g] = oe_key_make(max, (int32_t)g);
    }
    return groups;
}

/* max[j]: the largest of x[j], x[j + stride], x[j + 2 * stride], ... up to x[n - 1]. */
OE_CLONES
static void column_maxima(const float *restrict x, int32_t n, int32_t stride, float *restrict max) {
    memcpy(max, x, COLUMNS * sizeof *max);
    int32_t i = stride;
    for (; i + COLUMNS <= n; i += stride) {
        for (int32_t j = 0; j < COLUMNS; j++) {
            max[j] = x[i + j] > max[j] ? x[i + j] : max[j];
        }
    }
    for (int32_t j = 0; i + j < n; j++) {
        max[j] = x[i + j] > max[j] ? x[i + j] : max[j];
    }
}

/* The same for a row of few blocks: groups are the columns of the row when it is laid out so many entries wide. There
 * are `most` of them or somewhat fewer, but at least COLUMNS, which `keys` always has room for; 0 in a shorter row. */
static size_t strided_maxima(const oe_row *row, size_t most, uint64_t *keys) {
    const int32_t groups = most < COLUMNS ? COLUMNS : (int32_t)most / COLUMNS * COLUMNS;
    if (row->n < groups) {
        return 0;
    }
    for (int32_t g = 0; g < groups; g += COLUMNS) {
        float max[COLUMNS];
        column_maxima(row->x + g, row->n - g, groups, max);
        for (int32_t j = 0; j < COLUMNS; j++) {
            keys[g + j] = oe_key_make(max[j], g + j);
        }
    }
    return (size_t)groups;
}

/* A value that at least k entries reach, or -inf. The maxima of disjoint groups are entries; a touched entry may stand
 * behind one of them, so that many more groups have to reach it. */
static float lower_bound(const oe_row *row, int32_t k, uint64_t *keys) {
    const size_t want = (size_t)k + (size_t)row->n_touched;
    const size_t room = oe_top_capacity(k);
    const size_t most = 4 * want < room ? 4 * want : room; /* finer groups would hardly tighten the bound */
    const bool few_blocks = (size_t)oe_block_count(row->n) < most;
    const size_t groups = few_blocks ? strided_maxima(row, most, keys) : group_maxima(row, most, keys);
    if (groups < want) {
        return -INFINITY;
    }
    oe_keys_select(keys, groups, want);
    return oe_key_logit(keys[want - 1]);
}

/* One bit for each entry of a whole block: whether it is larger than `above`. */
OE_CLONES
static uint64_t find_above(const float *restrict x, float above) {
    uint32_t low = 0, high = 0; /* shifts by 32-bit lanes are what every instruction set has */
    for (int j = 0; j < OE_BLOCK / 2; j++) {
        low |= (uint32_t)(x[j] > above) << j;
        high |= (uint32_t)(x[j + OE_BLOCK / 2] > above) << j;
    }
    return (uint64_t)high << 32 | low;
}

int32_t oe_row_top(const oe_row *row, int32_t k, uint64_t *keys) {
    const size_t keep = (size_t)k;
    const size_t full = oe_top_capacity(k) - OE_BLOCK;
    size_t count = 0;
    /* Entries arrive with rising ids, so that one equal to the k-th largest of those before it has lost the tie. */
    float above = nextafterf(lower_bound(row, k, keys), -INFINITY);
    float padded[OE_BLOCK];
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        if (!(row->block_max[b] > above)) {
            continue;
        }
        const float *x = oe_row_block(row, b, padded);
        for (uint64_t bits = find_above(x, above); bits; bits &= bits - 1) {
            const int32_t j = oe_bits_lowest(bits), i = b * OE_BLOCK + j;
            if (!oe_row_is_touched(row, i)) {
                keys[count++] = oe_key_make(x[j], i);
            }
        }
        if (count > full) {
            oe_keys_select(keys, count, keep);
            count = keep;
            above = oe_key_logit(keys[keep - 1]);
        }
    }
    for (int32_t j = 0; j < row->n_touched; j++) { /* ids in any order: an equal one may still win its tie */
        if (row->value[j] > -INFINITY && row->value[j] >= above) {
            keys[count++] = oe_key_make(row->value[j], row->touched[j]);
        }
        if (count > full) {
            oe_keys_select(keys, count, keep);
            count = keep;
            above = oe_key_logit(keys[keep - 1]);
        }
    }
    if (count > keep) {
        oe_keys_select(keys, count, keep);
        count = keep;
    }
    return (int32_t)count;
}
