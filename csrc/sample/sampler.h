/* What a sampler holds; for sampler.c, which makes it, and sample.c, which draws with it. */
#ifndef OE_SAMPLER_H
#define OE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "sample/adaptive.h"
#include "sample/chain.h"
#include "sample/dry.h"
#include "sample/params.h"
#include "sample/penalties.h"
#include "sample/pool.h"
#include "sample/sample.h"

struct oe_sampler {
    /* -- parameters -- */
    oe_sample_params params;
    oe_link links[OE_LINKS]; /* [n_links] the chain without samplers that are off and adaptive-p */
    int32_t n_links;
    int32_t n_lead;    /* so many of them, at the beginning, are penalties and DRY, which touch few tokens of a row */
    bool is_greedy;    /* nothing but the best token matters */
    bool has_penalties, has_dry, has_adaptive;
    /* -- random stream -- */
    uint64_t draws;
    /* -- history, and what penalties, DRY and biases touch; penalties.value: the logit of the current step after the
     *    biases and the samplers that lead -- */
    oe_penalties penalties;
    oe_dry dry;
    /* -- state, and what accepting the token drawn last makes of it -- */
    double mu;
    oe_adaptive adaptive;
    int32_t drawn;        /* -1 for none */
    double drawn_measure; /* its surprise in bits for mirostat, its probability for adaptive-p */
    /* -- working memory of a step -- */
    oe_pool pool;
    uint64_t *weights; /* [weights_capacity] what adaptive-p's candidates weighed before it */
    int32_t weights_capacity;
};

static inline bool oe_link_is_overlay(oe_link link) { return link == OE_LINK_PENALTIES || link == OE_LINK_DRY; }

static inline bool oe_sampler_begins_with_top_k(const oe_sampler *s) {
    return s->n_lead < s->n_links && s->links[s->n_lead] == OE_LINK_TOP_K;
}

#endif
