/* Compiled with -ffp-contract=off: a fused multiply-add would round differently on one machine than on another. */
#include "dist.h"

#include <math.h>

#include "bits.h"

#define RANK_ONE 16777216.0f /* 2^24 */
#define DISTANCE_CAP 31.99f  /* exp(-31.99) * 2^40 rounds to 0 */
#define FIRST_SHIFT 50       /* order >> 50: bins of 1/64 in d, 2048 of them below the cap */
#define BIN_BITS 11
#define EIGHT 8 /* flags that one comparison looks at */

static inline uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float distance_of(float x, float max, float inv_temperature) {
    float d = (max - x) * inv_temperature;
    d = d > 0.0f ? d : 0.0f; /* negative for a touched entry whose own logit was the largest */
    return d < DISTANCE_CAP ? d : DISTANCE_CAP;
}

static inline uint32_t rank_of(float d) { return (uint32_t)(int32_t)(d * RANK_ONE); }

/* exp(-d) = 2^n * exp(r), |r| <= ln(2)/2, by the Taylor series to r^7 (remainder 6e-9). No branch, no library. */
static inline float exp_minus(float d) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    const float shifted = -d * 1.44269504f + magic;
    const float n = shifted - magic;
    const float r = (-d - n * 0.693359375f) - n * -2.12194440e-4f; /* ln 2 in two parts; the first times n is exact */
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const uint32_t scale_bits = (float_bits(shifted) - float_bits(magic) + 127u) << 23;
    float scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    return p * scale;
}

/* round(e * 2^40) for 0 <= e <= 1: with 2^12 added, the last bit of the double is 2^-40. */
static inline uint64_t fixed_point(float e) {
    const double shifted = (double)e + 4096.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return bits & (((uint64_t)1 << 52) - 1);
}

typedef struct weighed_block {
    uint32_t rank[OE_BLOCK];
    uint64_t weight[OE_BLOCK];
} weighed_block;

/* Two loops, because the first is about 32-bit and the second about 64-bit lanes. */
OE_CLONES
static void weigh_block(const float *restrict x, float max, float inv_temperature, weighed_block *restrict out) {
    float e[OE_BLOCK];
    for (int j = 0; j < OE_BLOCK; j++) {
        const float d = distance_of(x[j], max, inv_temperature);
        out->rank[j] = rank_of(d);
        e[j] = exp_minus(d);
    }
    for (int j = 0; j < OE_BLOCK; j++) {
        out->weight[j] = fixed_point(e[j]);
    }
}

/* 1 when any of the ranks is in first..first + span; those get inside[j] = 1. */
OE_CLONES
static uint32_t find_ranks(const float *restrict x, float max, float inv_temperature, uint32_t first, uint32_t span,
                           uint8_t *restrict inside) {
    uint32_t any = 0;
    for (int j = 0; j < OE_BLOCK; j++) {
        const uint32_t is = rank_of(distance_of(x[j], max, inv_temperature)) - first <= span;
        inside[j] = (uint8_t)is;
        any |= is;
    }
    return any;
}

static inline int32_t token_of(const oe_row *row, int32_t i) { return row->id ? row->id[i] : i; }

static inline oe_candidate candidate_of(float x, int32_t token, const oe_dist_spec *spec) {
    const float d = distance_of(x, spec->max, spec->inv_temperature);
    const oe_candidate candidate = {((uint64_t)rank_of(d) << 32) | (uint32_t)token, fixed_point(exp_minus(d))};
    return candidate;
}

/* -- lists ------------------------------------------------------------------------------------------------------- */

/* The last candidate of the smallest prefix (by order) that weighs >= target. 1 <= target <= the weight of the list.
 * *before becomes the weight of the prefix without it. Same splitting as oe_keys_select; reorders the list. */
static oe_candidate list_select(oe_candidate *list, size_t n, uint64_t target, uint64_t *before) {
    *before = 0;
    while (n > 1) {
        uint64_t all = ~(uint64_t)0, any = 0;
        for (size_t i = 0; i < n; i++) {
            all &= list[i].order;
            any |= list[i].order;
        }
        const uint64_t bit = (uint64_t)1 << oe_bits_highest(all ^ any);
        size_t split = 0;
        uint64_t weight = 0;
        for (size_t i = 0; i < n; i++) {
            const oe_candidate candidate = list[i];
            const uint64_t first = (candidate.order & bit) == 0;
            list[i] = list[split];
            list[split] = candidate;
            split += first;
            weight += candidate.weight & (0 - first);
        }
        if (*before + weight >= target) {
            n = split;
        } else {
            *before += weight;
            list += split;
            n -= split;
        }
    }
    return list[0];
}

/* -- histograms -------------------------------------------------------------------------------------------------- */

/* A prefix of the bits of `order`: the entries with order >> shift == prefix. */
typedef struct order_range {
    uint64_t prefix;
    int shift;
} order_range;

static inline size_t bin_of(uint64_t order, int shift) { return (size_t)(order >> shift) & (OE_DIST_BINS - 1); }

/* Neighbours go into different copies of the bins: where most entries share a bin (a flat row, or a peaked one with a
 * long tail), each addition to it would have to wait for the one before. */
static inline void add_block(const weighed_block *block, uint64_t *copies) {
    for (int32_t j = 0; j < OE_BLOCK; j += OE_DIST_COPIES) {
        for (int32_t c = 0; c < OE_DIST_COPIES; c++) {
            copies[(block->rank[j + c] >> (FIRST_SHIFT - 32)) * OE_DIST_COPIES + (uint32_t)c] += block->weight[j + c];
        }
    }
}

/* The weights of all entries into their bins; of those that min-p keeps into *min_p_weight; returns the total. */
static uint64_t histogram_all(const oe_row *row, const oe_dist_spec *spec, uint64_t *bins, uint64_t *min_p_weight) {
    weighed_block block;
    float padded[OE_BLOCK];
    uint64_t kept = 0, total = 0;
    memset(bins, 0, OE_DIST_COPIES * OE_DIST_BINS * sizeof *bins);
    for (int32_t b = 0; b < oe_block_count(row->n); b++) {
        weigh_block(oe_row_block(row, b, padded), spec->max, spec->inv_temperature, &block);
        add_block(&block, bins);
        for (int32_t j = 0; j < OE_BLOCK; j++) {
            kept += block.rank[j] <= spec->min_p_rank ? block.weight[j] : 0;
        }
    }
    for (int32_t i = 0; i < OE_DIST_BINS; i++) {
        uint64_t sum = 0;
        for (int32_t c = 0; c < OE_DIST_COPIES; c++) {
            sum += bins[i * OE_DIST_COPIES + c];
        }
        bins[i] = sum;
    }
    for (int32_t j = 0; j < row->n_touched; j++) { /* integer sums: what went in comes out exactly */
        const oe_candidate was = candidate_of(row->x[row->touched[j]], row->touched[j], spec);
        const oe_candidate is = candidate_of(row->value[j], row->touched[j], spec);
        bins[bin_of(was.order, FIRST_SHIFT)] -= was.weight;
        bins[bin_of(is.order, FIRST_SHIFT)] += is.weight;
        kept -= (was.order >> 32) <= spec->min_p_rank ? was.weight : 0;
        kept += (is.order >> 32) <= spec->min_p_rank ? is.weight : 0;
    }
    for (int i = 0; i < OE_DIST_BINS; i++) {
        total += bins[i];
    }
    *min_p_weight = kept;
    return total;
}

/* Where the entries of a range go: into bins by the bits at `shift`, or, when bins is NULL, into a list. */
typedef struct collector {
    uint64_t *bins;
    int shift;
    oe_candidate *list; /* [OE_DIST_DIRECT] */
    size_t found;       /* entries of the list; OE_DIST_DIRECT + 1: there are more than it holds */
} collector;

static void collect(collector *into, oe_candidate candidate, order_range range) {
    if (candidate.order >> range.shift != range.prefix || candidate.weight == 0) {
        return;
    }
    if (into->bins) {
        into->bins[bin_of(candidate.order, into->shift)] += candidate.weight;
    } else if (into->found >= OE_DIST_DIRECT) {
        into->found = OE_DIST_DIRECT + 1;
    } else {
        into->list[into->found++] = candidate;
    }
}

/* Those of the entries from `start` on that are inside; x: their logits, -inf beyond the end of the row. */
static void collect_eight(const oe_row *row, const oe_dist_spec *spec, order_range range, collector *into,
                          const uint8_t *inside, const float *x, int32_t start) {
    const int32_t size = row->n - start < EIGHT ? row->n - start : EIGHT;
    for (int32_t j = 0; j < size; j++) {
        if (inside[j] && !oe_row_is_touched(row, start + j)) {
            collect(into, candidate_of(x[j], token_of(row, start + j), spec), range);
        }
    }
}

static void collect_range(const oe_row *row, const oe_dist_spec *spec, order_range range, collector *into) {
    /* The ranks of the range: one only, when its prefix reaches into the ids. */
    const uint32_t first = (uint32_t)((range.prefix << range.shift) >> 32);
    const uint32_t span = range.shift > 32 ? (1u << (range.shift - 32)) - 1 : 0;
    float padded[OE_BLOCK];
    uint8_t inside[OE_BLOCK];
    for (int32_t b = 0; b < oe_block_count(row->n) && into->found <= OE_DIST_DIRECT; b++) {
        if (row->block_max &&
            rank_of(distance_of(row->block_max[b], spec->max, spec->inv_temperature)) > first + span) {
            continue; /* the whole block is less probable */
        }
        const float *x = oe_row_block(row, b, padded);
        if (!find_ranks(x, spec->max, spec->inv_temperature, first, span, inside)) {
            continue;
        }
        for (int32_t j = 0; j < OE_BLOCK; j += EIGHT) {
            uint64_t eight;
            memcpy(&eight, inside + j, EIGHT);
            if (eight) {
                collect_eight(row, spec, range, into, inside + j, x + j, b * OE_BLOCK + j);
            }
        }
    }
    for (int32_t j = 0; j < row->n_touched; j++) {
        collect(into, candidate_of(row->value[j], row->touched[j], spec), range);
    }
}

/* The last bin also answers for a target beyond the sum: another thread may have changed the row since it was summed. */
static uint64_t find_bin(const uint64_t *bins, uint64_t target, uint64_t *before) {
    uint64_t bin = 0;
    while (bin < OE_DIST_BINS - 1 && *before + bins[bin] < target) {
        *before += bins[bin++];
    }
    return bin;
}

/* Whether entries of this range that weigh so much together must be more than the list holds: each weighs at most what
 * the best of the range may. Only a matter of speed: it saves gathering a list in vain. */
static bool overflows_list(order_range range, uint64_t weight) {
    const float nearest = (float)((range.prefix << range.shift) >> 32) / RANK_ONE;
    const uint64_t heaviest = fixed_point(exp_minus(nearest)) + 1;
    return weight / heaviest > OE_DIST_DIRECT + OE_DIST_DIRECT / 64; /* the series rounds: no more than near the truth */
}

/* list_select over the whole row: the bin that holds the answer is refined until its entries fit into the list. */
static oe_candidate row_select(const oe_row *row, const oe_dist_spec *spec, uint64_t target, uint64_t *before,
                               const oe_dist_scratch *scratch) {
    uint64_t *part = scratch->bins + OE_DIST_BINS;
    order_range range = {0, FIRST_SHIFT};
    *before = 0;
    range.prefix = find_bin(scratch->bins, target, before);
    collector list = {.list = scratch->candidates};
    list.found = overflows_list(range, scratch->bins[range.prefix]) ? OE_DIST_DIRECT + 1 : 0;
    collect_range(row, spec, range, &list);
    while (list.found > OE_DIST_DIRECT) {
        const int shift = range.shift > BIN_BITS ? range.shift - BIN_BITS : 0;
        collector bins = {.bins = part, .shift = shift};
        memset(part, 0, OE_DIST_BINS * sizeof *part);
        collect_range(row, spec, range, &bins);
        const uint64_t bin = find_bin(part, target, before);
        range.prefix = (range.prefix << (range.shift - shift)) | bin;
        range.shift = shift;
        list.found = overflows_list(range, part[bin]) ? OE_DIST_DIRECT + 1 : 0;
        collect_range(row, spec, range, &list);
    }
    uint64_t inside;
    const oe_candidate last = list_select(scratch->candidates, list.found, target - *before, &inside);
    *before += inside;
    return last;
}

/* -- the draw ---------------------------------------------------------------------------------------------------- */

static uint64_t top_p_target(double top_p, uint64_t total) {
    const double target = ceil(top_p * (double)total);
    if (target < 1.0) {
        return 1;
    }
    return target < (double)total ? (uint64_t)target : total;
}

static uint64_t multiply_high(uint64_t a, uint64_t b) {
    const uint64_t low = (uint32_t)a * (uint64_t)(uint32_t)b;
    const uint64_t middle = (a >> 32) * (uint32_t)b + (low >> 32);
    const uint64_t other = (uint32_t)a * (b >> 32) + (uint32_t)middle;
    return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

static size_t list_fill(const oe_row *row, const oe_dist_spec *spec, oe_candidate *list) {
    size_t n = 0;
    for (int32_t i = 0; i < row->n; i++) {
        if (!oe_row_is_touched(row, i)) {
            list[n++] = candidate_of(row->x[i], token_of(row, i), spec);
        }
    }
    for (int32_t j = 0; j < row->n_touched; j++) {
        list[n++] = candidate_of(row->value[j], row->touched[j], spec);
    }
    return n;
}

int32_t oe_dist_draw(const oe_row *row, const oe_dist_spec *spec, uint64_t random, const oe_dist_scratch *scratch) {
    const bool direct = row->n <= OE_DIST_DIRECT;
    oe_candidate *list = scratch->candidates;
    size_t n = 0;
    uint64_t total = 0, kept = 0, before;
    if (direct) {
        n = list_fill(row, spec, list);
        for (size_t i = 0; i < n; i++) {
            total += list[i].weight;
            kept += (list[i].order >> 32) <= spec->min_p_rank ? list[i].weight : 0;
        }
    } else {
        total = histogram_all(row, spec, scratch->bins, &kept);
    }
    if (spec->top_p < 1.0) {
        const uint64_t target = top_p_target(spec->top_p, total);
        const oe_candidate last = direct ? list_select(list, n, target, &before)
                                         : row_select(row, spec, target, &before, scratch);
        /* Both cuts keep a prefix, so the lighter one is what both keep. */
        kept = before + last.weight < kept ? before + last.weight : kept;
    }
    const uint64_t target = multiply_high(random, kept) + 1;
    const oe_candidate drawn = direct ? list_select(list, n, target, &before)
                                      : row_select(row, spec, target, &before, scratch);
    return (int32_t)(uint32_t)drawn.order;
}

uint64_t oe_dist_total(const float *x, int32_t n, float max) {
    const oe_row row = {.x = x, .n = n};
    weighed_block block;
    float padded[OE_BLOCK];
    uint64_t total = 0;
    for (int32_t b = 0; b < oe_block_count(n); b++) {
        weigh_block(oe_row_block(&row, b, padded), max, 1.0f, &block);
        for (int j = 0; j < OE_BLOCK; j++) {
            total += block.weight[j];
        }
    }
    return total;
}
