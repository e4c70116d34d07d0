/* A draw from the softmax of some logits, cut to its most probable prefix.
 *
 * logit_kernels.h defines rank and weight. The order of probability is (rank, token), so ties go to the lower id.
 * Weights are integers: their sums do not depend on the order of summing, so every path (each instruction set, few
 * candidates, the whole vocabulary) and the numpy twin of the tests agree to the last bit. An entry less than 2^-41
 * times as probable as the best has weight 0 and is never drawn. */
#ifndef OE_DIST_H
#define OE_DIST_H

#include <stdint.h>

#include "sample/logit_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OE_DIST_LIST 4096 /* room for candidates that a row's search needs */

typedef struct oe_candidate {
    uint64_t order; /* rank << 32 | token */
    uint64_t weight;
} oe_candidate;

/* Working memory of one caller. Rows need room for OE_DIST_LIST candidates, and the last two. */
typedef struct oe_dist_scratch {
    float *x; /* [room for the longest list]; and the next two */
    int32_t *id;
    oe_candidate *candidates; /* zero at first */
    uint64_t (*bins)[OE_BIN_COPIES]; /* [OE_DIST_BINS] */
    uint64_t *head;                  /* [OE_DIST_BINS] */
} oe_dist_scratch;

typedef struct oe_dist_spec {
    oe_scale scale;      /* its max is the largest entry */
    double top_p;        /* keep the smallest prefix whose weight is >= top_p of the total; >= 1 keeps all */
    uint32_t min_p_rank; /* keep entries of at most this rank; OE_RANK_LIMIT keeps all */
} oe_dist_spec;

/* The weight that the smallest prefix kept by top-p has at least: top_p of the total, rounded up. */
uint64_t oe_dist_top_p_target(double top_p, uint64_t total);

/* 0 .. total - 1, each as likely as the others: `random` are 64 uniform bits. */
uint64_t oe_dist_uniform(uint64_t random, uint64_t total);

/* Candidates of the entries scratch->x[n] of the tokens scratch->id[n], in the same order; returns their weight. */
uint64_t oe_dist_weigh_list(const oe_logit_kernels *kernels, int32_t n, oe_scale scale, const oe_dist_scratch *scratch);

/* The last candidate of the smallest prefix (by order) that weighs >= target. 1 <= target <= the weight of the list.
 * *before becomes the weight of the prefix without it. Reorders the list; orders must differ. */
oe_candidate oe_dist_select(oe_candidate *list, int32_t n, uint64_t target, uint64_t *before);

/* Draws from a row of any length, where entry i is token i. `random` are 64 uniform bits. Cannot fail: the entry `max`
 * is kept. */
int32_t oe_dist_draw_row(const oe_logit_kernels *kernels, const oe_logits *row, const oe_dist_spec *spec,
                         uint64_t random, const oe_dist_scratch *scratch);

/* What of a row top-p keeps, closely: no more than one of its bins is too much. */
typedef struct oe_dist_prefix {
    uint32_t rank;   /* entries of at most this rank; the last one that is kept is among them */
    uint64_t target; /* what the entries that are kept weigh together, at least */
} oe_dist_prefix;

oe_dist_prefix oe_dist_top_p_of_row(const oe_logit_kernels *kernels, const oe_logits *row, oe_scale scale, double top_p,
                                    const oe_dist_scratch *scratch);

#ifdef __cplusplus
}
#endif

#endif
