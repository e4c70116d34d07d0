#include "sample/select.h"

#include <float.h>
#include <math.h>

#include "base/bitset.h"

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

float oe_largest(const float *x, int32_t n) {
    float max[8], best = -INFINITY; /* side by side: each alone would wait for the one before */
    for (int j = 0; j < 8; j++) {
        max[j] = -INFINITY;
    }
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; j++) {
            max[j] = x[i + j] > max[j] ? x[i + j] : max[j];
        }
    }
    for (int j = 0; j < 8; j++) {
        best = max[j] > best ? max[j] : best;
    }
    for (; i < n; i++) {
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

int32_t oe_row_best(const oe_row *row) {
    const oe_logits *logits = &row->logits;
    const int32_t blocks = oe_block_count(logits->n);
    const float best = oe_largest(logits->block_max, blocks);
    int32_t block = 0;
    while (block < blocks && logits->block_max[block] != best) {
        block++;
    }
    for (int32_t i = block * OE_BLOCK; best > -INFINITY && i < logits->n; i++) {
        if (logits->x[i] == best && oe_is_allowed(logits->mask, i)) {
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
        const uint64_t bit = (uint64_t)1 << oe_bitset_highest(all ^ any);
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
static size_t group_maxima(const oe_logits *logits, size_t most, uint64_t *keys) {
    const size_t blocks = (size_t)oe_block_count(logits->n);
    const size_t per_group = (blocks + most - 1) / most;
    const size_t groups = (blocks + per_group - 1) / per_group;
    for (size_t g = 0; g < groups; g++) {
        const size_t end = (g + 1) * per_group < blocks ? (g + 1) * per_group : blocks;
        float max = -INFINITY;
        for (size_t b = g * per_group; b < end; b++) {
            max = logits->block_max[b] > max ? logits->block_max[b] : max;
        }
        keys[g] = oe_key_make(max, (int32_t)g);
    }
    return groups;
}

/* The same for a row of few blocks: groups are the columns of the row when it is laid out so many entries wide. There
 * are `most` of them or somewhat fewer, but at least OE_BLOCK, which `keys` always has room for; 0 in a shorter row. */
static size_t strided_maxima(const oe_logit_kernels *kernels, const oe_logits *logits, size_t most, uint64_t *keys) {
    const int32_t groups = most < OE_BLOCK ? OE_BLOCK : (int32_t)most / OE_BLOCK * OE_BLOCK;
    if (logits->n < groups) {
        return 0;
    }
    for (int32_t g = 0; g < groups; g += OE_BLOCK) {
        float max[OE_BLOCK];
        kernels->column_maxima(logits, g / OE_BLOCK, groups / OE_BLOCK, max);
        for (int32_t j = 0; j < OE_BLOCK; j++) {
            keys[g + j] = oe_key_make(max[j], g + j);
        }
    }
    return (size_t)groups;
}

/* A value that at least k entries reach, or -inf. The maxima of disjoint groups are entries; a touched entry may stand
 * behind one of them, so that many more groups have to reach it. */
static float lower_bound(const oe_logit_kernels *kernels, const oe_row *row, int32_t k, uint64_t *keys) {
    const oe_logits *logits = &row->logits;
    const size_t want = (size_t)k + (size_t)row->n_touched;
    const size_t room = oe_top_capacity(k);
    const size_t most = 4 * want < room ? 4 * want : room; /* finer groups would hardly tighten the bound */
    const bool few_blocks = (size_t)oe_block_count(logits->n) < most;
    const size_t groups =
        few_blocks ? strided_maxima(kernels, logits, most, keys) : group_maxima(logits, most, keys);
    if (groups < want) {
        return -INFINITY;
    }
    oe_keys_select(keys, groups, want);
    return oe_key_logit(keys[want - 1]);
}

int32_t oe_row_top(const oe_logit_kernels *kernels, const oe_row *row, int32_t k, uint64_t *keys) {
    const size_t keep = (size_t)k;
    const size_t full = oe_top_capacity(k) - OE_BLOCK;
    size_t count = 0;
    /* Entries arrive with rising ids, so that one equal to the k-th largest of those before it has lost the tie. */
    float above = nextafterf(lower_bound(kernels, row, k, keys), -INFINITY);
    for (int32_t b = 0; b < oe_block_count(row->logits.n); b++) {
        if (!(row->logits.block_max[b] > above)) {
            continue;
        }
        for (uint64_t bits = kernels->above(&row->logits, b, above); bits; bits &= bits - 1) {
            const int32_t i = b * OE_BLOCK + oe_bitset_lowest(bits);
            if (!oe_row_is_touched(row, i)) {
                keys[count++] = oe_key_make(row->logits.x[i], i);
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
