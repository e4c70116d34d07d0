/* Compiled with -ffp-contract=off: a fused multiply-add would round differently on one machine than on another. */
#include "sample/dist.h"

#include <math.h>
#include <string.h>

#include "base/bitset.h"

#define LONG_LIST 512     /* candidates that are sorted into bins before they are split in two */
#define SAMPLED_BLOCKS 16 /* enough to see how far most of a row spreads */

/* -- lists ------------------------------------------------------------------------------------------------------- */

uint64_t oe_dist_weigh_list(const oe_logit_kernels *kernels, int32_t n, oe_scale scale,
                            const oe_dist_scratch *scratch) {
    float padded[OE_BLOCK];
    uint32_t rank[OE_BLOCK];
    uint64_t weight[OE_BLOCK], total = 0;
    for (int32_t start = 0; start < n; start += OE_BLOCK) {
        const int32_t size = n - start < OE_BLOCK ? n - start : OE_BLOCK;
        for (int32_t j = 0; j < OE_BLOCK; j++) {
            padded[j] = scratch->x[j < size ? start + j : start];
        }
        kernels->weigh(padded, scale, rank, weight);
        for (int32_t j = 0; j < size; j++) {
            const uint64_t order = (uint64_t)rank[j] << 32 | (uint32_t)scratch->id[start + j];
            scratch->candidates[start + j] = (oe_candidate){order, weight[j]};
            total += weight[j];
        }
    }
    return total;
}

/* The bits in which the candidates differ, or 0. */
static uint64_t differing_bits(const oe_candidate *list, int32_t n) {
    uint64_t all = ~(uint64_t)0, any = 0;
    for (int32_t i = 0; i < n; i++) {
        all &= list[i].order;
        any |= list[i].order;
    }
    return all ^ any;
}

/* Narrows a long list to those candidates that share the ten highest bits that differ, the answer among them. */
static int32_t select_bin(oe_candidate *list, int32_t n, uint64_t target, uint64_t *before) {
    uint64_t bins[OE_DIST_BINS][2] = {0}; /* neighbours go into different copies, as in logit_kernels.h */
    const int highest = oe_bitset_highest(differing_bits(list, n) | 1);
    const int shift = highest > 9 ? highest - 9 : 0;
    uint64_t bin = 0;
    for (int32_t i = 0; i < n; i++) {
        bins[list[i].order >> shift & (OE_DIST_BINS - 1)][i & 1] += list[i].weight;
    }
    while (bin < OE_DIST_BINS - 1 && *before + bins[bin][0] + bins[bin][1] < target) {
        *before += bins[bin][0] + bins[bin][1];
        bin++;
    }
    int32_t size = 0;
    for (int32_t i = 0; i < n; i++) {
        const oe_candidate candidate = list[i];
        list[i] = list[size];
        list[size] = candidate;
        size += (candidate.order >> shift & (OE_DIST_BINS - 1)) == bin;
    }
    return size ? size : 1;
}

/* The same as splitting in two at the highest bit that differs, as oe_keys_select does. */
static int32_t select_half(oe_candidate **list, int32_t n, uint64_t target, uint64_t *before) {
    const uint64_t bit = (uint64_t)1 << oe_bitset_highest(differing_bits(*list, n) | 1);
    oe_candidate *at = *list;
    int32_t split = 0;
    uint64_t weight = 0;
    for (int32_t i = 0; i < n; i++) {
        const oe_candidate candidate = at[i];
        const uint64_t first = (candidate.order & bit) == 0;
        at[i] = at[split];
        at[split] = candidate;
        split += (int32_t)first;
        weight += candidate.weight & (0 - first);
    }
    if (*before + weight >= target) {
        return split;
    }
    *before += weight;
    *list += split;
    return n - split;
}

oe_candidate oe_dist_select(oe_candidate *list, int32_t n, uint64_t target, uint64_t *before) {
    *before = 0;
    while (n > LONG_LIST) {
        n = select_bin(list, n, target, before);
    }
    while (n > 1) {
        n = select_half(&list, n, target, before);
    }
    return list[0];
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

/* A row, and how its weights are spread over its head, the ranks that a target is likely to fall into.
 *
 * Another thread may change the row meanwhile. Then sums do not match what is found later: all below ends, and gives
 * some token, whatever the numbers are. */
typedef struct row_search {
    const oe_logit_kernels *kernels;
    const oe_logits *row;
    oe_scale scale;
    const oe_dist_scratch *scratch;
    oe_window head;
    int shift; /* scratch->head[i]: weight of the ranks (i << shift) .. (i + 1 << shift) - 1 of the head */
    uint64_t head_weight;
} row_search;

/* So many of the low bits of a rank do not matter when a window is divided into bins. */
static int shift_of(oe_window window) {
    int shift = 0;
    while (window.span >> shift >= OE_DIST_BINS) {
        shift++;
    }
    return shift;
}

static oe_window window_of_bin(oe_window window, int shift, uint32_t bin) {
    const uint32_t start = bin << shift, width = ((uint32_t)1 << shift) - 1;
    const uint32_t left = window.span - start;
    return (oe_window){window.first + start, width < left ? width : left};
}

static uint64_t sum_of_copies(const uint64_t *copies) {
    uint64_t sum = 0;
    for (int c = 0; c < OE_BIN_COPIES; c++) {
        sum += copies[c];
    }
    return sum;
}

static void clear_bins(const oe_dist_scratch *scratch) {
    memset(scratch->bins, 0, OE_DIST_BINS * sizeof *scratch->bins);
}

/* The part of the window that the target falls into; the weight of the parts before it is added to *before. */
static oe_window narrow(const row_search *s, oe_window window, uint64_t target, uint64_t *before) {
    const int shift = shift_of(window);
    const uint32_t last = window.span >> shift;
    uint64_t weight;
    uint32_t bin = 0;
    clear_bins(s->scratch);
    s->kernels->bin(s->row, s->scale, window, shift, s->scratch->bins);
    while (bin < last && *before + (weight = sum_of_copies(s->scratch->bins[bin])) < target) {
        *before += weight;
        bin++;
    }
    return window_of_bin(window, shift, bin);
}

/* The same for all ranks, by the sums that are there already if the target is in the head. */
static oe_window narrow_row(const row_search *s, uint64_t target, uint64_t *before) {
    uint32_t bin = 0;
    *before = 0;
    if (target > s->head_weight) {
        const uint32_t first = s->head.span + 1;
        *before = s->head_weight;
        return narrow(s, (oe_window){first, OE_RANK_LIMIT - first}, target, before);
    }
    while (*before + s->scratch->head[bin] < target) {
        *before += s->scratch->head[bin++];
    }
    return window_of_bin(s->head, s->shift, bin);
}

/* Candidates of the window from block *block on, in order of their ids, as many as fit; returns how many. */
static int32_t list_window(const row_search *s, oe_window window, int32_t *block) {
    const oe_dist_scratch *scratch = s->scratch;
    const int32_t n = s->kernels->pick(s->row, s->scale, window, block, scratch->id, OE_DIST_LIST);
    for (int32_t i = 0; i < n; i++) {
        const int32_t token = scratch->id[i];
        scratch->x[i] = oe_is_allowed(s->row->mask, token) ? s->row->x[token] : -INFINITY;
    }
    oe_dist_weigh_list(s->kernels, n, s->scale, scratch);
    return n;
}

/* Among entries of one rank, whose order is that of their ids: as oe_dist_select, but adds to *before. */
static oe_candidate select_among_ties(const row_search *s, oe_window rank, oe_extent extent, uint64_t target,
                                      uint64_t *before) {
    const oe_dist_scratch *scratch = s->scratch;
    oe_candidate last = scratch->candidates[0];
    if (extent.low == extent.high) { /* they weigh the same: find it by counting */
        scratch->x[0] = extent.low;
        scratch->id[0] = 0;
        oe_dist_weigh_list(s->kernels, 1, s->scale, scratch);
        const uint64_t weight = scratch->candidates[0].weight ? scratch->candidates[0].weight : 1;
        const uint64_t passed = (target - *before - 1) / weight, most = (uint64_t)extent.count - 1;
        const uint64_t n = passed < most ? passed : most;
        const int32_t found = s->kernels->nth(s->row, s->scale, rank, (int32_t)n);
        *before += n * weight;
        return found < 0 ? last : (oe_candidate){(uint64_t)rank.first << 32 | (uint32_t)found, weight};
    }
    for (int32_t block = 0; block < oe_block_count(s->row->n);) {
        const int32_t n = list_window(s, rank, &block);
        for (int32_t i = 0; i < n; i++) {
            last = scratch->candidates[i];
            if (*before + last.weight >= target) {
                return last;
            }
            *before += last.weight;
        }
    }
    return last;
}

/* As oe_dist_select. The window around the answer is narrowed until its entries fit into the list. */
static oe_candidate select_from_row(const row_search *s, uint64_t target, uint64_t *before) {
    oe_window window = narrow_row(s, target, before);
    for (;;) {
        int32_t block = 0;
        const int32_t n = list_window(s, window, &block);
        if (block == oe_block_count(s->row->n)) {
            uint64_t inside;
            const oe_candidate last = oe_dist_select(s->scratch->candidates, n, target - *before, &inside);
            *before += inside;
            return last;
        }
        const oe_extent extent = s->kernels->extent(s->row, s->scale, window);
        const uint32_t low = oe_rank(extent.high, s->scale), high = oe_rank(extent.low, s->scale);
        if (extent.count > 0 && low - window.first <= window.span && high - low <= window.span - (low - window.first)) {
            window = (oe_window){low, high - low};
        }
        if (window.span == 0) {
            return select_among_ties(s, window, extent, target, before);
        }
        window = narrow(s, window, target, before);
    }
}

/* The largest rank in some blocks all over the row, disallowed entries included: they spread like the others. */
static uint32_t sampled_spread(const row_search *s) {
    const int32_t whole = s->row->n / OE_BLOCK;
    const int32_t stride = whole / SAMPLED_BLOCKS + 1;
    uint32_t rank[OE_BLOCK], largest = 0;
    uint64_t weight[OE_BLOCK];
    for (int32_t b = 0; b < whole; b += stride) {
        s->kernels->weigh(s->row->x + b * OE_BLOCK, s->scale, rank, weight);
        for (int j = 0; j < OE_BLOCK; j++) {
            largest = rank[j] > largest ? rank[j] : largest;
        }
    }
    return largest;
}

/* At least so much do the row's entries weigh together: the largest of each block. */
static uint64_t least_total(const row_search *s) {
    const oe_logits maxima = {s->row->block_max, NULL, NULL, oe_block_count(s->row->n)};
    float padded[OE_BLOCK];
    uint32_t rank[OE_BLOCK];
    uint64_t weight[OE_BLOCK], total = 0;
    for (int32_t start = 0; start < maxima.n; start += OE_BLOCK) {
        for (int32_t j = 0; j < OE_BLOCK; j++) {
            padded[j] = start + j < maxima.n ? maxima.x[start + j] : -INFINITY;
        }
        s->kernels->weigh(padded, s->scale, rank, weight);
        for (int j = 0; j < OE_BLOCK; j++) {
            total += weight[j];
        }
    }
    return total;
}

/* The ranks that are worth bins in the first pass: speed depends on it, results do not. Entries beyond d weigh less
 * than n * exp(-d) together, so that d = log(n / (tail * total)) leaves at most `tail` of the total beyond. Where the
 * row spreads less than that, narrower bins hold fewer entries each. */
static oe_window likely_head(const row_search *s, const oe_dist_spec *spec) {
    const double tail = spec->top_p < 1.0 ? 1.0 - spec->top_p : 0x1p-10;
    const double total = (double)least_total(s) / (double)OE_WEIGHT_ONE;
    const double d = log((double)s->row->n / (tail * (total < 1.0 ? 1.0 : total)));
    uint32_t span = d < 31.0 ? (uint32_t)((d > 0.0 ? d : 0.0) * OE_RANK_ONE) : 31 * OE_RANK_ONE;
    const uint32_t spread = sampled_spread(s);
    const uint32_t wider = spread + spread / 4 + 64;
    span = wider < span ? wider : span;
    return (oe_window){0, spec->min_p_rank < span ? spec->min_p_rank : span};
}

/* -- the draw ---------------------------------------------------------------------------------------------------- */

uint64_t oe_dist_top_p_target(double top_p, uint64_t total) {
    const double target = ceil(top_p * (double)total);
    if (target < 1.0) {
        return 1;
    }
    return target < (double)total ? (uint64_t)target : total;
}

/* The upper half of their product. */
uint64_t oe_dist_uniform(uint64_t a, uint64_t b) {
    const uint64_t low = (uint32_t)a * (uint64_t)(uint32_t)b;
    const uint64_t middle = (a >> 32) * (uint32_t)b + (low >> 32);
    const uint64_t other = (uint32_t)a * (b >> 32) + (uint32_t)middle;
    return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

/* Both cuts keep a prefix, so the lighter one is what both keep: no need to look for top-p's where min-p's falls short
 * of its target. */
static bool top_p_cuts(const oe_dist_spec *spec, oe_weights weights) {
    return spec->top_p < 1.0 && oe_dist_top_p_target(spec->top_p, weights.total) <= weights.kept;
}

static uint64_t lighter(uint64_t kept, uint64_t before, oe_candidate last) {
    return before + last.weight < kept ? before + last.weight : kept;
}

/* Sums of the row, with the bins of its head. */
static oe_weights weigh_row(row_search *s, const oe_dist_spec *spec) {
    s->head = likely_head(s, spec);
    s->shift = shift_of(s->head);
    clear_bins(s->scratch);
    const oe_weights weights = s->kernels->sum(s->row, s->scale, spec->min_p_rank, s->head, s->shift, s->scratch->bins);
    for (uint32_t bin = 0; bin <= s->head.span >> s->shift; bin++) {
        s->scratch->head[bin] = sum_of_copies(s->scratch->bins[bin]);
        s->head_weight += s->scratch->head[bin];
    }
    return weights;
}

int32_t oe_dist_draw_row(const oe_logit_kernels *kernels, const oe_logits *row, const oe_dist_spec *spec,
                         uint64_t random, const oe_dist_scratch *scratch) {
    row_search s = {.kernels = kernels, .row = row, .scale = spec->scale, .scratch = scratch};
    uint64_t before;
    oe_weights weights = weigh_row(&s, spec);
    if (top_p_cuts(spec, weights)) {
        const oe_candidate last = select_from_row(&s, oe_dist_top_p_target(spec->top_p, weights.total), &before);
        weights.kept = lighter(weights.kept, before, last);
    }
    return (int32_t)(uint32_t)select_from_row(&s, oe_dist_uniform(random, weights.kept) + 1, &before).order;
}

oe_dist_prefix oe_dist_top_p_of_row(const oe_logit_kernels *kernels, const oe_logits *row, oe_scale scale, double top_p,
                                    const oe_dist_scratch *scratch) {
    row_search s = {.kernels = kernels, .row = row, .scale = scale, .scratch = scratch};
    const oe_dist_spec spec = {scale, top_p, OE_RANK_LIMIT};
    const uint64_t total = weigh_row(&s, &spec).total;
    uint64_t before;
    oe_dist_prefix prefix = {OE_RANK_LIMIT, oe_dist_top_p_target(top_p, total ? total : 1)};
    const oe_window window = narrow_row(&s, prefix.target, &before);
    prefix.rank = window.first + window.span;
    return prefix;
}
