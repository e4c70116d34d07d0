/* Compiled with -ffp-contract=off, like dist.c. */
#include "sample/chain.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "sample/exact_math.h"

#define LEAST_XTC (1.0 / 2048) /* below this threshold it looks at all tokens, not at those that can reach it */

uint32_t oe_chain_rank_of(double p) {
    const double rank = p > 0 ? floor(-oe_log(p) * OE_RANK_ONE) : OE_RANK_LIMIT;
    return rank < OE_RANK_LIMIT ? (uint32_t)rank : OE_RANK_LIMIT;
}

float oe_chain_below(double x) {
    if (!(x > -(double)FLT_MAX)) {
        return -INFINITY;
    }
    const float nearest = x < FLT_MAX ? (float)x : FLT_MAX;
    return (double)nearest < x ? nearest : nextafterf(nearest, -INFINITY);
}

bool oe_chain_is_on(const oe_sample_params *q, oe_link link, int32_t n_vocab) {
    switch (link) {
    case OE_LINK_PENALTIES:
        return q->repeat_last_n != 0 &&
               (q->repeat_penalty != 1.0f || q->presence_penalty != 0.0f || q->frequency_penalty != 0.0f);
    case OE_LINK_DRY:
        return q->dry_multiplier != 0.0 && q->dry_base >= 1.0 && q->dry_penalty_last_n != 0;
    case OE_LINK_TEMPERATURE:
        return q->temperature != 1.0 || q->dynatemp_range > 0.0;
    case OE_LINK_ADAPTIVE_P:
        return !q->mirostat && q->adaptive_target >= 0.0;
    default:
        break;
    }
    if (q->mirostat) {
        return false;
    }
    switch (link) {
    case OE_LINK_TOP_N_SIGMA:
        return q->top_n_sigma > 0.0;
    case OE_LINK_TOP_K:
        return q->top_k > 0 && q->top_k < n_vocab;
    case OE_LINK_TYP_P:
        return q->typical_p < 1.0;
    case OE_LINK_TOP_P:
        return q->top_p < 1.0;
    case OE_LINK_MIN_P:
        return q->min_p > 0.0;
    case OE_LINK_XTC:
        return q->xtc_probability > 0.0 && q->xtc_threshold <= 0.5;
    default:
        return false;
    }
}

/* -- what samplers ask of a pool ----------------------------------------------------------------------------------- */

/* Whether a cut with a lower limit of candidates has to count them, which a row does not. */
static bool is_counted(const oe_pool *p, int32_t min_keep) { return !p->is_list && min_keep > 1; }

/* The order of the k-th most probable candidate of a weighed list; its weights are lost. */
static uint64_t nth_order(oe_pool *p, int32_t k) {
    uint64_t before;
    for (int32_t i = 0; i < p->n; i++) {
        p->dist.candidates[i].weight = 1;
    }
    k = k < p->n ? k : p->n;
    return oe_dist_select(p->dist.candidates, p->n, (uint64_t)k, &before).order;
}

/* Keeps a weighed list up to `last`, but min_keep of it. */
static bool keep_prefix(oe_pool *p, uint64_t last, int32_t min_keep) {
    if (min_keep > 1 && p->n > 0) {
        const uint64_t least = nth_order(p, min_keep);
        last = least > last ? least : last;
    }
    return oe_pool_keep_orders(p, 0, last);
}

static oe_surprise surprise_of(oe_pool *p) {
    oe_surprise sums = {p->n, oe_pool_weigh(p), 0};
    for (int32_t i = 0; i < p->n; i++) {
        const oe_candidate *candidate = &p->dist.candidates[i];
        sums.distance += oe_weighted_distance((uint32_t)(candidate->order >> 32), candidate->weight);
    }
    return sums;
}

/* -- cuts by probability ------------------------------------------------------------------------------------------- */

static bool top_p(oe_pool *p, const oe_sample_params *q) {
    oe_logits logits;
    uint64_t before;
    if (is_counted(p, q->min_keep) && !oe_pool_to_list(p)) {
        return false;
    }
    uint64_t target = 0;
    if (!p->is_list) {
        if (!oe_pool_settle(p, &logits)) {
            return false;
        }
        const oe_dist_prefix prefix =
            oe_dist_top_p_of_row(p->kernels, &logits, oe_pool_scale(p), q->top_p, &p->dist);
        if (!oe_pool_keep_orders(p, 0, oe_pool_last_of_rank(prefix.rank))) {
            return false;
        }
        target = prefix.target;
    }
    const uint64_t total = oe_pool_weigh(p);
    target = target ? target : oe_dist_top_p_target(q->top_p, total);
    return keep_prefix(p, oe_dist_select(p->dist.candidates, p->n, target, &before).order, q->min_keep);
}

static bool min_p(oe_pool *p, const oe_sample_params *q) {
    const uint64_t last = oe_pool_last_of_rank(oe_chain_rank_of(q->min_p));
    if (is_counted(p, q->min_keep) && !oe_pool_to_list(p)) {
        return false;
    }
    if (q->min_keep > 1) {
        oe_pool_weigh(p);
        return keep_prefix(p, last, q->min_keep);
    }
    return oe_pool_keep_orders(p, 0, last);
}

/* Of a weighed list, the place in the order of the last one that has at least `threshold` of the probability: how many
 * come before it, and its order. */
static int32_t last_above(const oe_pool *p, uint64_t total, double threshold, uint64_t *last) {
    const double least = threshold * (double)total;
    int32_t before = 0;
    *last = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const oe_candidate *candidate = &p->dist.candidates[i];
        *last = (double)candidate->weight >= least && candidate->order > *last ? candidate->order : *last;
    }
    for (int32_t i = 0; i < p->n; i++) {
        before += p->dist.candidates[i].order < *last;
    }
    return before;
}

/* As xtc, of a row: only its best tokens can reach the threshold. */
static bool xtc_row(oe_pool *p, double threshold) {
    oe_logits logits;
    uint64_t last;
    if (!oe_pool_settle(p, &logits)) {
        return false;
    }
    const oe_window none = {0, 0};
    const uint64_t total = p->kernels->sum(&logits, oe_pool_scale(p), OE_RANK_LIMIT, none, 0, NULL).total;
    const int32_t most = oe_pool_best(p, (int32_t)(1.0 / threshold) + 1);
    if (most < 0 || !oe_pool_reserve_list(p, most)) {
        return false;
    }
    p->n = most; /* for the moment; it is still a row */
    for (int32_t i = 0; i < most; i++) {
        p->dist.x[i] = oe_key_logit(p->keys[i]);
        p->dist.id[i] = oe_key_id(p->keys[i]);
    }
    oe_pool_weigh(p);
    if (!last_above(p, total, threshold, &last)) {
        return true;
    }
    int32_t n = 0;
    for (int32_t i = 0; i < most; i++) {
        if (p->dist.candidates[i].order < last) {
            p->dist.id[n++] = p->dist.id[i];
        }
    }
    return oe_pool_remove(p, p->dist.id, n);
}

/* With a probability, removes all tokens that reach the threshold but the least probable of them. */
static bool xtc(oe_pool *p, const oe_sample_params *q, uint64_t random) {
    uint64_t last;
    if ((double)(random >> 11) * 0x1p-53 >= q->xtc_probability) {
        return true;
    }
    if ((is_counted(p, q->min_keep) || q->xtc_threshold < LEAST_XTC) && !oe_pool_to_list(p)) {
        return false;
    }
    if (!p->is_list) {
        return xtc_row(p, q->xtc_threshold);
    }
    const uint64_t total = oe_pool_weigh(p);
    const int32_t before = last_above(p, total, q->xtc_threshold, &last);
    return p->n - before < q->min_keep || before == 0 || oe_pool_keep_orders(p, last, ~(uint64_t)0);
}

/* -- cuts by other measures ---------------------------------------------------------------------------------------- */

/* How far from `center` an order's rank is, in place of the rank. */
static uint64_t typical_order(uint64_t order, int64_t center) {
    const int64_t distance = (int64_t)(order >> 32) - center;
    return (uint64_t)(distance < 0 ? -distance : distance) << 32 | (uint32_t)order;
}

/* Of a row, a list of the candidates around `center`, so many that they weigh at least `target`: entries further away
 * cannot stay. Found by the weights of ranks in steps of 2^19. */
static bool list_typical(oe_pool *p, const oe_logits *logits, int64_t center, uint64_t target) {
    enum { SHIFT = 19, BINS = OE_RANK_LIMIT >> SHIFT };
    uint64_t(*bins)[OE_BIN_COPIES] = p->dist.bins;
    const int64_t middle = center >> SHIFT;
    int64_t radius = -1;
    uint64_t weight = 0;
    memset(bins, 0, OE_DIST_BINS * sizeof *bins);
    p->kernels->bin(logits, oe_pool_scale(p), (oe_window){0, OE_RANK_LIMIT - 1}, SHIFT, bins);
    while (weight < target && radius < BINS) {
        radius += 1;
        for (int c = 0; c < OE_BIN_COPIES; c++) {
            weight += middle >= radius ? bins[middle - radius][c] : 0;
            weight += radius > 0 && middle + radius < BINS ? bins[middle + radius][c] : 0;
        }
    }
    /* One more on each side: the middle bin may reach further to one side of the center than to the other. */
    const int64_t low = middle - radius - 1, high = middle + radius + 2;
    const uint64_t first = (uint64_t)(low > 0 ? low : 0) << SHIFT;
    const uint64_t behind = (uint64_t)(high < BINS ? high : BINS) << SHIFT;
    return oe_pool_keep_orders(p, first << 32, (behind << 32) - 1);
}

/* Orders by |surprise - entropy|, which is |d - mean of d|: the logarithm of the total falls out. Keeps the shortest
 * prefix that weighs more than typical_p of the total. */
static bool typical(oe_pool *p, const oe_sample_params *q) {
    const float max = p->max; /* ranks count from here, whatever is left */
    uint64_t before;
    oe_logits logits = {0};
    oe_surprise sums;
    if ((is_counted(p, q->min_keep) && !oe_pool_to_list(p)) || (!p->is_list && !oe_pool_settle(p, &logits))) {
        return false;
    }
    sums = p->is_list ? surprise_of(p) : p->kernels->surprise(&logits, oe_pool_scale(p));
    sums.total = sums.total ? sums.total : 1;
    const double mean = (double)sums.distance / (double)sums.total * OE_RANK_ONE + 0.5;
    const int64_t center = mean < OE_RANK_LIMIT ? (int64_t)mean : OE_RANK_LIMIT - 1;
    const double share = floor(q->typical_p * (double)sums.total) + 1.0;
    const uint64_t target = share < (double)sums.total ? (uint64_t)share : sums.total;
    if (!p->is_list) {
        if (!list_typical(p, &logits, center, target)) {
            return false;
        }
        p->max = max;
        oe_pool_weigh(p);
    }
    for (int32_t i = 0; i < p->n; i++) {
        p->dist.candidates[i].order = typical_order(p->dist.candidates[i].order, center);
    }
    uint64_t last = oe_dist_select(p->dist.candidates, p->n, target, &before).order;
    if (q->min_keep > 1) {
        const uint64_t least = nth_order(p, q->min_keep);
        last = least > last ? least : last;
    }
    const oe_scale scale = oe_pool_scale(p);
    int32_t kept = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const uint64_t order = oe_pool_order(p, i, scale);
        p->dist.x[kept] = p->dist.x[i];
        p->dist.id[kept] = p->dist.id[i];
        kept += typical_order(order, center) <= last;
    }
    p->n = kept;
    p->max = oe_largest(p->dist.x, kept);
    return true;
}

static oe_moments moments_of_list(const oe_pool *p, double factor) {
    oe_moments sums = {p->n, 0, 0, 0};
    for (int32_t i = 0; i < p->n; i++) {
        const uint32_t step = oe_step_of(p->dist.x[i], p->max, factor);
        const uint64_t square = (uint64_t)step * step;
        sums.sum += step;
        sums.squares_low += square & 0xffffffffu;
        sums.squares_high += square >> 32;
    }
    return sums;
}

static float least_of_list(const oe_pool *p) {
    float least = INFINITY;
    for (int32_t i = 0; i < p->n; i++) {
        least = p->dist.x[i] < least ? p->dist.x[i] : least;
    }
    return least;
}

/* Keeps what is within n standard deviations of the largest logit. Distances from it are rounded down to 2^-30 of
 * their range or less, so that their sums are exact in any order. */
static bool top_n_sigma(oe_pool *p, const oe_sample_params *q) {
    oe_logits logits = {0};
    int exponent;
    if (!p->is_list && !oe_pool_settle(p, &logits)) {
        return false;
    }
    const float least = p->is_list ? least_of_list(p) : p->kernels->least(&logits);
    const double range = (double)p->max - (double)least;
    if (!(range > 0.0)) {
        return true;
    }
    frexp(range, &exponent);
    const double factor = ldexp(1.0, 31 - exponent);
    const oe_moments sums = p->is_list ? moments_of_list(p, factor) : p->kernels->moments(&logits, p->max, factor);
    const double n = (double)sums.count, mean = (double)sums.sum / n;
    const double squares = ((double)sums.squares_high * 0x1p32 + (double)sums.squares_low) / n;
    const double variance = squares - mean * mean;
    const double deviation = sqrt(variance > 0.0 ? variance : 0.0) / factor;
    return oe_pool_keep_above(p, oe_chain_below((double)p->max - q->top_n_sigma * deviation));
}

/* -- temperature --------------------------------------------------------------------------------------------------- */

static bool divide_by(oe_pool *p, double temperature) {
    if (!(temperature > 0.0)) {
        return oe_pool_keep_top(p, 1);
    }
    const double inverse = p->inverse * (1.0 / temperature);
    p->inverse = inverse < FLT_MAX ? inverse : FLT_MAX; /* infinity times 0 is no number */
    return true;
}

/* Between temperature - range and temperature + range, by how flat the distribution is. */
static bool dynamic_temperature(oe_pool *p, const oe_sample_params *q) {
    oe_logits logits;
    oe_surprise sums;
    if (p->is_list) {
        sums = surprise_of(p);
    } else if (oe_pool_settle(p, &logits)) {
        sums = p->kernels->surprise(&logits, oe_pool_scale(p));
    } else {
        return false;
    }
    if (sums.count < 2 || !sums.total) {
        return true;
    }
    const double log_of_total = oe_log((double)sums.total / (double)OE_WEIGHT_ONE);
    const double entropy = log_of_total + (double)sums.distance / (double)sums.total;
    const double low = q->temperature > q->dynatemp_range ? q->temperature - q->dynatemp_range : 0.0;
    const double high = q->temperature + q->dynatemp_range;
    const double flatness = oe_pow(entropy / oe_log((double)sums.count), q->dynatemp_exponent);
    return divide_by(p, low + (high - low) * flatness);
}

/* -- the chain ----------------------------------------------------------------------------------------------------- */

bool oe_chain_apply(oe_pool *p, const oe_sample_params *q, oe_link link, uint64_t random) {
    switch (link) {
    case OE_LINK_TOP_N_SIGMA:
        return top_n_sigma(p, q);
    case OE_LINK_TOP_K:
        return oe_pool_keep_top(p, q->top_k);
    case OE_LINK_TYP_P:
        return typical(p, q);
    case OE_LINK_TOP_P:
        return top_p(p, q);
    case OE_LINK_MIN_P:
        return min_p(p, q);
    case OE_LINK_XTC:
        return xtc(p, q, random);
    case OE_LINK_TEMPERATURE:
        return q->dynatemp_range > 0.0 ? dynamic_temperature(p, q) : divide_by(p, q->temperature);
    default:
        return true;
    }
}
