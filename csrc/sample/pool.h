/* The candidates of one step: a row over the whole vocabulary, or a list of what samplers have left of it.
 *
 * A row stays a row as long as no sampler cuts it. Entries at -inf are no candidates. The order of probability is
 * (rank, token) at the current scale, see logit_kernels.h. */
#ifndef OE_POOL_H
#define OE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "sample/dist.h"
#include "sample/logit_kernels.h"
#include "sample/select.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_pool {
    const oe_logit_kernels *kernels;
    int32_t n_vocab;
    /* -- working memory -- */
    float *block_max;
    uint64_t *keys;
    int32_t keys_k;        /* the k that `keys` has room for */
    float *dense;          /* [n_vocab] a row that differs from the logits */
    oe_dist_scratch dist;  /* a list is dist.x[n] of the tokens dist.id[n], in any order */
    int32_t list_capacity;
    /* -- candidates -- */
    bool is_list;
    oe_row row;      /* unless it is a list */
    int32_t n;       /* length of the list */
    float max;       /* largest entry */
    double inverse;  /* 1 / temperature, the product of all */
} oe_pool;

bool oe_pool_init(oe_pool *pool, const oe_logit_kernels *kernels, int32_t n_vocab);
void oe_pool_free(oe_pool *pool);

/* Room ahead of a step, so that it need not be found there. False when there is no memory. */
bool oe_pool_reserve_keys(oe_pool *pool, int32_t k);
bool oe_pool_reserve_list(oe_pool *pool, int32_t n);
bool oe_pool_reserve_row(oe_pool *pool, bool dense); /* what drawing from a row needs */

/* Candidates are the row's, whose scan has filled block_max; `max` is the largest of them. */
void oe_pool_start(oe_pool *pool, const oe_row *row, float max);

oe_scale oe_pool_scale(const oe_pool *pool);

/* The row with the touched entries in place. False when there is no memory. */
bool oe_pool_settle(oe_pool *pool, oe_logits *logits);

/* These tokens of a row are no candidates any more; false when there is no memory. */
bool oe_pool_remove(oe_pool *pool, const int32_t *tokens, int32_t n);

/* A list of all candidates; false when there is no memory. A list stays as it is. */
bool oe_pool_to_list(oe_pool *pool);

/* A list of the k largest (ties: the lower token); false when there is no memory. */
bool oe_pool_keep_top(oe_pool *pool, int32_t k);

/* Of the i-th candidate of a list: rank << 32 | token. */
static inline uint64_t oe_pool_order(const oe_pool *pool, int32_t i, oe_scale scale) {
    return (uint64_t)oe_rank(pool->dist.x[i], scale) << 32 | (uint32_t)pool->dist.id[i];
}

/* Keeps the candidates whose order is first .. last. False when there is no memory. */
bool oe_pool_keep_orders(oe_pool *pool, uint64_t first, uint64_t last);

/* The order of the last candidate of this rank. */
static inline uint64_t oe_pool_last_of_rank(uint32_t rank) { return (uint64_t)rank << 32 | 0xffffffffu; }

/* Keeps the candidates above `least`. False when there is no memory. */
bool oe_pool_keep_above(oe_pool *pool, float least);

/* dist.candidates of the list; their weight, at least 1. */
uint64_t oe_pool_weigh(oe_pool *pool);

/* log of what the weights of the pool sum up to, the best one's being 1. False when there is no memory. */
bool oe_pool_log_total(oe_pool *pool, double *log_of);

/* The k largest candidates into keys, best first; how many, or -1 without memory. The pool stays as it is. */
int32_t oe_pool_best(oe_pool *pool, int32_t k);

#ifdef __cplusplus
}
#endif

#endif
