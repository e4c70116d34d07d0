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

#define OE_DIST_LIST 4096 /* candidates that are handled as a list; more go through a histogram */
#define OE_DIST_BINS 1024

typedef struct oe_candidate {
    uint64_t order; /* rank << 32 | token */
    uint64_t weight;
} oe_candidate;

/* Working memory of one caller. The last two may be NULL for lists. */
typedef struct oe_dist_scratch {
    float *x;                 /* [OE_DIST_LIST], or the length of the longest list if that is less; and the next two */
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

/* Draws from the entries scratch->x[n] of the tokens scratch->id[n], in any order; 1 <= n <= OE_DIST_LIST.
 * `random` are 64 uniform bits. Cannot fail: the entry `max` is kept. */
int32_t oe_dist_draw_list(const oe_logit_kernels *kernels, int32_t n, const oe_dist_spec *spec, uint64_t random,
                          const oe_dist_scratch *scratch);

/* The same from a row of any length, where entry i is token i. */
int32_t oe_dist_draw_row(const oe_logit_kernels *kernels, const oe_logits *row, const oe_dist_spec *spec,
                         uint64_t random, const oe_dist_scratch *scratch);

#ifdef __cplusplus
}
#endif

#endif
