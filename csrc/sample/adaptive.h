/* Adaptive-p: prefers tokens whose probability is near a target, and moves the target so that the probabilities of
 * the tokens chosen have it as their mean. Source: llama.cpp, pull request 17927. */
#ifndef OE_ADAPTIVE_H
#define OE_ADAPTIVE_H

#include <stdint.h>

#include "sample/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The moving average of the probabilities, before this sampler, of the tokens accepted: sum / weight. */
typedef struct oe_adaptive {
    double sum, weight;
} oe_adaptive;

oe_adaptive oe_adaptive_begin(double target, double decay); /* as if all tokens so far had been on target */

void oe_adaptive_accept(oe_adaptive *state, double decay, double probability);

double oe_adaptive_mean(const oe_adaptive *state);

/* Gives a list the logits that prefer the target; weights[n] become those from before. */
void oe_adaptive_transform(const oe_adaptive *state, double target, oe_pool *pool, uint64_t *weights);

/* The probability that a token of the list had before its transformation. */
double oe_adaptive_probability(const oe_pool *pool, const uint64_t *weights, int32_t token);

#ifdef __cplusplus
}
#endif

#endif
