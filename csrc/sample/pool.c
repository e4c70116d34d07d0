/* Compiled with -ffp-contract=off, like dist.c.
 *
 * Another thread may change the logits meanwhile. Then numbers make no sense, but nothing here leaves its arrays. */
#include "sample/pool.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitset.h"
#include "sample/exact_math.h"

/* -- memory -------------------------------------------------------------------------------------------------------- */

bool oe_pool_init(oe_pool *p, const oe_logit_kernels *kernels, int32_t n_vocab) {
    memset(p, 0, sizeof *p);
    p->kernels = kernels;
    p->n_vocab = n_vocab;
    p->block_max = malloc((size_t)oe_block_count(n_vocab) * sizeof *p->block_max);
    return p->block_max != NULL;
}

void oe_pool_free(oe_pool *p) {
    void *owned[] = {p->block_max, p->keys, p->dense, p->dist.x, p->dist.id, p->dist.candidates, p->dist.bins,
                     p->dist.head};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        free(owned[i]);
    }
    memset(p, 0, sizeof *p);
}

bool oe_pool_reserve_keys(oe_pool *p, int32_t k) {
    if (k <= p->keys_k) {
        return true;
    }
    uint64_t *keys = realloc(p->keys, oe_top_capacity(k) * sizeof *keys);
    if (keys) {
        p->keys = keys;
        p->keys_k = k;
    }
    return keys != NULL;
}

/* Lists have one of few sizes, so that they grow once at most. */
bool oe_pool_reserve_list(oe_pool *p, int32_t n) {
    if (n <= p->list_capacity) {
        return true;
    }
    const size_t room = (size_t)(n <= OE_BLOCK ? OE_BLOCK : n <= OE_DIST_LIST ? OE_DIST_LIST : p->n_vocab + OE_BLOCK);
    const size_t before = (size_t)p->list_capacity;
    float *x = realloc(p->dist.x, room * sizeof *x);
    p->dist.x = x ? x : p->dist.x;
    int32_t *id = realloc(p->dist.id, room * sizeof *id);
    p->dist.id = id ? id : p->dist.id;
    oe_candidate *candidates = realloc(p->dist.candidates, room * sizeof *candidates);
    p->dist.candidates = candidates ? candidates : p->dist.candidates;
    if (!x || !id || !candidates) {
        return false;
    }
    memset(candidates + before, 0, (room - before) * sizeof *candidates);
    p->list_capacity = (int32_t)room;
    return true;
}

bool oe_pool_reserve_row(oe_pool *p, bool dense) {
    if (!oe_pool_reserve_list(p, OE_DIST_LIST)) {
        return false;
    }
    if (!p->dist.bins && !(p->dist.bins = malloc(OE_DIST_BINS * sizeof *p->dist.bins))) {
        return false;
    }
    if (!p->dist.head && !(p->dist.head = malloc(OE_DIST_BINS * sizeof *p->dist.head))) {
        return false;
    }
    return !dense || p->dense || (p->dense = malloc((size_t)p->n_vocab * sizeof *p->dense));
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

void oe_pool_start(oe_pool *p, const oe_row *row, float max) {
    p->is_list = false;
    p->row = *row;
    p->n = 0;
    p->max = max;
    p->inverse = 1.0;
}

oe_scale oe_pool_scale(const oe_pool *p) {
    const double inverse = p->inverse > FLT_MAX ? FLT_MAX : p->inverse < FLT_MIN ? FLT_MIN : p->inverse;
    return (oe_scale){p->max, (float)inverse};
}

static float dense_max(const oe_pool *p, const uint32_t *mask, int32_t block) {
    const int32_t start = block * OE_BLOCK;
    const int32_t end = p->n_vocab - start < OE_BLOCK ? p->n_vocab : start + OE_BLOCK;
    float max = -INFINITY;
    for (int32_t i = start; i < end; i++) {
        max = p->dense[i] > max && oe_is_allowed(mask, i) ? p->dense[i] : max;
    }
    return max;
}

static void put_dense(oe_pool *p, const uint32_t *mask, int32_t id, float x) {
    float *max = &p->block_max[id / OE_BLOCK];
    const float before = p->dense[id];
    p->dense[id] = x;
    if (x >= *max) {
        *max = x;
    } else if (before == *max) {
        *max = dense_max(p, mask, id / OE_BLOCK);
    }
}

static bool make_dense(oe_pool *p) {
    if (!oe_pool_reserve_row(p, true)) {
        return false;
    }
    if (p->row.logits.x != p->dense) {
        memcpy(p->dense, p->row.logits.x, (size_t)p->n_vocab * sizeof *p->dense);
        p->row.logits.x = p->dense;
    }
    for (int32_t i = 0; i < p->row.n_touched; i++) {
        put_dense(p, p->row.logits.mask, p->row.touched[i], p->row.value[i]);
    }
    p->row.n_touched = 0;
    p->row.slot = NULL;
    return true;
}

bool oe_pool_settle(oe_pool *p, oe_logits *logits) {
    if (p->row.n_touched ? !make_dense(p) : !oe_pool_reserve_row(p, false)) {
        return false;
    }
    *logits = p->row.logits;
    return true;
}

bool oe_pool_remove(oe_pool *p, const int32_t *tokens, int32_t n) {
    if (!make_dense(p)) {
        return false;
    }
    for (int32_t i = 0; i < n; i++) {
        put_dense(p, p->row.logits.mask, tokens[i], -INFINITY);
    }
    p->max = oe_largest(p->block_max, oe_block_count(p->n_vocab));
    return true;
}

/* -- from a row to a list ------------------------------------------------------------------------------------------ */

static void find_max(oe_pool *p) {
    p->max = oe_largest(p->dist.x, p->n);
    p->is_list = true;
}

/* The entry of a row, with its touched entries in place. */
static float entry(const oe_row *row, int32_t i) {
    return oe_row_is_touched(row, i) ? row->value[row->slot[i] - 1] : row->logits.x[i];
}

static bool add(oe_pool *p, int32_t id, float x) {
    if (p->n == p->list_capacity && !oe_pool_reserve_list(p, p->n_vocab)) {
        return false;
    }
    if (p->n < p->list_capacity) { /* more come only where the row changes meanwhile */
        p->dist.x[p->n] = x;
        p->dist.id[p->n++] = id;
    }
    return true;
}

bool oe_pool_to_list(oe_pool *p) {
    if (p->is_list) {
        return true;
    }
    const int32_t most = p->row.n_allowed;
    const oe_row row = p->row;
    const oe_logits *logits = &row.logits;
    if (!oe_pool_reserve_list(p, most)) {
        return false;
    }
    p->n = 0;
    for (int32_t b = 0; b < oe_block_count(logits->n); b++) {
        const int32_t start = b * OE_BLOCK, left = logits->n - start;
        uint64_t bits = left < OE_BLOCK ? ((uint64_t)1 << left) - 1 : ~(uint64_t)0;
        bits = logits->mask ? oe_allowed(logits->mask, logits->n, b) : bits;
        for (; bits && p->n < p->list_capacity; bits &= bits - 1) {
            const int32_t i = start + oe_bitset_lowest(bits);
            const float x = entry(&row, i);
            p->dist.x[p->n] = x;
            p->dist.id[p->n] = i;
            p->n += x > -INFINITY;
        }
    }
    find_max(p);
    return true;
}

static void list_keys(oe_pool *p, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        p->dist.x[i] = oe_key_logit(p->keys[i]);
        p->dist.id[i] = oe_key_id(p->keys[i]);
    }
    p->n = n;
    find_max(p);
}

/* Keys of the whole list. */
static bool key_list(oe_pool *p) {
    if (!oe_pool_reserve_keys(p, p->n)) {
        return false;
    }
    for (int32_t i = 0; i < p->n; i++) {
        p->keys[i] = oe_key_make(p->dist.x[i], p->dist.id[i]);
    }
    return true;
}

bool oe_pool_keep_top(oe_pool *p, int32_t k) {
    if (p->is_list && k >= p->n) {
        return true;
    }
    if (p->is_list) {
        if (!key_list(p)) {
            return false;
        }
        oe_keys_select(p->keys, (size_t)p->n, (size_t)k);
        list_keys(p, k);
        return true;
    }
    k = k < p->n_vocab ? k : p->n_vocab;
    if (!oe_pool_reserve_keys(p, k) || !oe_pool_reserve_list(p, k)) {
        return false;
    }
    list_keys(p, oe_row_top(p->kernels, &p->row, k, p->keys));
    return true;
}

static int compare_descending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

int32_t oe_pool_best(oe_pool *p, int32_t k) {
    int32_t n = p->n < k ? p->n : k;
    if (p->is_list) {
        if (!key_list(p)) {
            return -1;
        }
        if (n < p->n) {
            oe_keys_select(p->keys, (size_t)p->n, (size_t)n);
        }
    } else {
        k = k < p->n_vocab ? k : p->n_vocab;
        if (!oe_pool_reserve_keys(p, k)) {
            return -1;
        }
        n = oe_row_top(p->kernels, &p->row, k, p->keys);
    }
    qsort(p->keys, (size_t)n, sizeof *p->keys, compare_descending);
    return n;
}

/* -- cuts ---------------------------------------------------------------------------------------------------------- */

static void keep_listed(oe_pool *p, uint64_t first, uint64_t last) {
    const oe_scale scale = oe_pool_scale(p);
    int32_t kept = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const uint64_t order = oe_pool_order(p, i, scale);
        p->dist.x[kept] = p->dist.x[i];
        p->dist.id[kept] = p->dist.id[i];
        kept += order >= first && order <= last;
    }
    p->n = kept;
    if (first > 0) { /* else the best is still there */
        find_max(p);
    }
}

bool oe_pool_keep_orders(oe_pool *p, uint64_t first, uint64_t last) {
    oe_logits logits;
    if (p->is_list) {
        keep_listed(p, first, last);
        return true;
    }
    if (!oe_pool_settle(p, &logits)) {
        return false;
    }
    const oe_scale scale = oe_pool_scale(p);
    const uint32_t low = (uint32_t)(first >> 32), high = (uint32_t)(last >> 32);
    int32_t block = 0;
    p->n = 0;
    while (block < oe_block_count(logits.n)) {
        if (p->list_capacity - p->n < OE_BLOCK && !oe_pool_reserve_list(p, p->n_vocab + OE_BLOCK)) {
            return false;
        }
        if (p->list_capacity - p->n < OE_BLOCK) {
            break; /* the row changes meanwhile */
        }
        p->n += p->kernels->pick(&logits, scale, (oe_window){low, high - low}, &block, p->dist.id + p->n,
                                 p->list_capacity - p->n);
    }
    int32_t kept = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const int32_t id = p->dist.id[i];
        p->dist.x[kept] = logits.x[id];
        p->dist.id[kept] = id;
        kept += logits.x[id] > -INFINITY && oe_is_allowed(logits.mask, id); /* others have the highest rank */
    }
    p->n = kept;
    p->is_list = true;
    keep_listed(p, first, last);
    return true;
}

bool oe_pool_keep_above(oe_pool *p, float least) {
    if (p->is_list) {
        int32_t kept = 0;
        for (int32_t i = 0; i < p->n; i++) {
            p->dist.x[kept] = p->dist.x[i];
            p->dist.id[kept] = p->dist.id[i];
            kept += p->dist.x[i] > least;
        }
        p->n = kept;
        find_max(p);
        return true;
    }
    const oe_row row = p->row;
    p->n = 0;
    for (int32_t b = 0; b < oe_block_count(row.logits.n); b++) {
        if (!(row.logits.block_max[b] > least)) {
            continue;
        }
        for (uint64_t bits = p->kernels->above(&row.logits, b, least); bits; bits &= bits - 1) {
            const int32_t i = b * OE_BLOCK + oe_bitset_lowest(bits);
            if (!oe_row_is_touched(&row, i) && !add(p, i, row.logits.x[i])) {
                return false;
            }
        }
    }
    for (int32_t i = 0; i < row.n_touched; i++) {
        if (row.value[i] > least && !add(p, row.touched[i], row.value[i])) {
            return false;
        }
    }
    find_max(p);
    return true;
}

uint64_t oe_pool_weigh(oe_pool *p) {
    const uint64_t total = oe_dist_weigh_list(p->kernels, p->n, oe_pool_scale(p), &p->dist);
    return total ? total : 1;
}

bool oe_pool_log_total(oe_pool *p, double *log_of) {
    const oe_window none = {0, 0};
    oe_logits logits;
    uint64_t total;
    if (p->is_list) {
        total = oe_pool_weigh(p);
    } else if (oe_pool_settle(p, &logits)) {
        total = p->kernels->sum(&logits, oe_pool_scale(p), OE_RANK_LIMIT, none, 0, NULL).total;
    } else {
        return false;
    }
    *log_of = oe_log((double)(total ? total : 1) / (double)OE_WEIGHT_ONE);
    return true;
}
