/* The samplers that cut candidates or change their temperature, each as llama.cpp defines it.
 *
 *   top-n-sigma   C. Tang et al., "Top-n-sigma: not all logits are you need", arXiv:2411.07641, 2024
 *   typical       C. Meister et al., "Locally typical sampling", arXiv:2202.00666, 2022
 *   top-p         A. Holtzman et al., "The curious case of neural text degeneration", arXiv:1904.09751, 2019
 *   min-p         M. Nguyen et al., "Turning up the heat: min-p sampling", arXiv:2407.01082, 2024
 *   XTC           P. E. Weidmann, text-generation-webui, pull request 6335, 2024
 *   dynatemp      kalomaze, llama.cpp, pull request 4972, 2024
 *   mirostat      S. Basu et al., "Mirostat", arXiv:2007.14966, 2020: algorithm 1, and llama.cpp's 2.0
 *
 * Candidates at -inf are none at all: llama.cpp keeps some in its list, where they count for the entropy that dynatemp
 * divides by, and make typical's NaN. */
#ifndef OE_CHAIN_H
#define OE_CHAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "sample/params.h"
#include "sample/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a link of the chain does anything with these parameters. */
bool oe_chain_is_on(const oe_sample_params *params, oe_link link, int32_t n_vocab);

/* One sampler; not penalties, DRY and adaptive-p. `random`: 64 uniform bits, for XTC alone. False without memory. */
bool oe_chain_apply(oe_pool *pool, const oe_sample_params *params, oe_link link, uint64_t random);

/* Mirostat's cut; false without memory. */
bool oe_chain_mirostat(oe_pool *pool, int32_t version, double mu);

/* floor(2^24 * -ln p): the rank of the last entry that is at least p times as probable as the best. */
uint32_t oe_chain_rank_of(double p);

/* The largest float below x, or -inf. */
float oe_chain_below(double x);

#ifdef __cplusplus
}
#endif

#endif
