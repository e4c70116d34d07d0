/* Mirostat: S. Basu et al., arXiv:2007.14966, 2020: algorithm 1, and llama.cpp's 2.0. Compiled like chain.c. */
#include <math.h>

#include "sample/chain.h"
#include "sample/exact_math.h"

#define MIROSTAT_M 100 /* how many of the best tokens its estimate looks at, as llama.cpp's programs ask for */

/* The k for which top-k gives the surprise mu, were the distribution Zipf's with the exponent of the best tokens. */
static bool mirostat_1(oe_pool *p, double mu) {
    const oe_scale scale = oe_pool_scale(p);
    const int32_t n = oe_pool_best(p, MIROSTAT_M);
    double products = 0.0, squares = 0.0;
    if (n < 0) {
        return false;
    }
    for (int32_t i = 0; i + 1 < n; i++) {
        const double t = oe_log((double)(i + 2) / (double)(i + 1));
        const uint32_t step = oe_rank(oe_key_logit(p->keys[i + 1]), scale) - oe_rank(oe_key_logit(p->keys[i]), scale);
        products += t * ((double)step / OE_RANK_ONE);
        squares += t * t;
    }
    const double exponent = products / squares, excess = exponent - 1.0;
    const double share = excess * oe_pow(2.0, mu) / (1.0 - oe_pow((double)p->n_vocab, -excess));
    const double k = exponent > 0.0 ? oe_pow(share, 1.0 / exponent) : 1.0;
    return oe_pool_keep_top(p, k < (double)p->n_vocab ? (k >= 1.0 ? (int32_t)k : 1) : p->n_vocab);
}

/* Keeps the tokens whose surprise is at most mu bits. */
static bool mirostat_2(oe_pool *p, double mu) {
    double log_of_total;
    if (!oe_pool_log_total(p, &log_of_total)) {
        return false;
    }
    const double most = floor((mu * OE_LN2 - log_of_total) * OE_RANK_ONE);
    if (!(most >= 0.0)) {
        return oe_pool_keep_top(p, 1);
    }
    return oe_pool_keep_orders(p, 0, oe_pool_last_of_rank(most < OE_RANK_LIMIT ? (uint32_t)most : OE_RANK_LIMIT));
}

bool oe_chain_mirostat(oe_pool *p, int32_t version, double mu) {
    return version == 1 ? mirostat_1(p, mu) : mirostat_2(p, mu);
}
