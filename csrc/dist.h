/* The softmax of a row in fixed point, its most probable prefix, and a draw from it.
 *
 * Definition. With d = (max - x) * inv_temperature in float (0 <= d, capped below 32), an entry has
 *   rank   q = floor(d * 2^24)             order of probability; the order key is (q, token), so ties go to the lower id
 *   weight w = round(exp(-d) * 2^40)       2^40 for the most probable entry
 * Weights are integers: their sums do not depend on the order of summing, so every path (scalar, SIMD, few candidates,
 * the whole vocabulary) and the numpy twin of the tests agree to the last bit. An entry less than 2^-41 times as
 * probable as the best has weight 0 and is never drawn. */
#ifndef OE_DIST_H
#define OE_DIST_H

#include <stdint.h>

#include "select.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OE_WEIGHT_ONE ((uint64_t)1 << 40)
#define OE_RANK_LIMIT ((uint32_t)1 << 29) /* above every rank */
#define OE_DIST_DIRECT 4096               /* candidates that are handled as a list; more go through a histogram */
#define OE_DIST_BINS 2048
#define OE_DIST_COPIES 4

typedef struct oe_candidate {
    uint64_t order; /* rank << 32 | token */
    uint64_t weight;
} oe_candidate;

/* Working memory of one caller. `bins` may be NULL when no row is longer than OE_DIST_DIRECT. */
typedef struct oe_dist_scratch {
    oe_candidate *candidates; /* [OE_DIST_DIRECT], or the length of the longest row if that is less */
    uint64_t *bins;           /* [OE_DIST_COPIES * OE_DIST_BINS] weights of all ranks, then of a part of them */
} oe_dist_scratch;

typedef struct oe_dist_spec {
    float max;             /* largest entry of the row */
    float inv_temperature; /* > 0, finite */
    double top_p;          /* keep the smallest prefix whose weight is >= top_p of the total; >= 1 keeps all */
    uint32_t min_p_rank;   /* keep entries of at most this rank; OE_RANK_LIMIT keeps all */
} oe_dist_spec;

/* Draws a token from the kept prefix of the row; `random` are 64 uniform bits. Cannot fail: the entry `max` is kept. */
int32_t oe_dist_draw(const oe_row *row, const oe_dist_spec *spec, uint64_t random, const oe_dist_scratch *scratch);

/* Sum of the weights of x[n] at temperature 1 (`max` its largest entry): log(total / 2^40) + max is its logsumexp. */
uint64_t oe_dist_total(const float *x, int32_t n, float max);

#ifdef __cplusplus
}
#endif

#endif
