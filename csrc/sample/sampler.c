/* A sampler's life: made, copied, reset, told which tokens were accepted. */
#include "sample/sampler.h"

#include <stdlib.h>

/* Typical and XTC may remove the best token; what comes behind a temperature of 0 has no choice. */
static bool only_best_matters(const oe_sampler *s) {
    for (int32_t i = s->n_lead; i < s->n_links && !s->params.mirostat; i++) {
        const oe_link link = s->links[i];
        if (link == OE_LINK_TEMPERATURE) {
            return s->params.temperature == 0.0 && !(s->params.dynatemp_range > 0.0) && !s->has_adaptive;
        }
        if (oe_link_is_overlay(link) || link == OE_LINK_TYP_P || link == OE_LINK_XTC) {
            return false;
        }
    }
    return false;
}

static void plan_chain(oe_sampler *s) {
    for (int32_t i = 0; i < s->params.n_chain; i++) {
        const oe_link link = (oe_link)s->params.chain[i];
        if (!oe_chain_is_on(&s->params, link, s->pool.n_vocab)) {
            continue;
        }
        s->has_penalties |= link == OE_LINK_PENALTIES;
        s->has_dry |= link == OE_LINK_DRY;
        s->has_adaptive |= link == OE_LINK_ADAPTIVE_P;
        if (link != OE_LINK_ADAPTIVE_P) {
            s->links[s->n_links++] = link;
        }
    }
    while (s->n_lead < s->n_links && oe_link_is_overlay(s->links[s->n_lead])) {
        s->n_lead++;
    }
    s->is_greedy = only_best_matters(s);
}

/* What a step will need in any case, so that it is not short of it. */
static bool allocate(oe_sampler *s) {
    const bool is_short = oe_sampler_begins_with_top_k(s);
    const int32_t most = is_short ? s->params.top_k : s->pool.n_vocab;
    const bool is_touched = s->has_penalties || s->has_dry || s->penalties.n_bias;
    if (!oe_pool_reserve_keys(&s->pool, is_short ? most : 1)) {
        return false;
    }
    if (s->is_greedy) {
        return true;
    }
    return most <= OE_DIST_LIST || is_short ? oe_pool_reserve_list(&s->pool, most)
                                            : oe_pool_reserve_row(&s->pool, is_touched);
}

oe_sampler *oe_sampler_create(const oe_sample_params *params, int32_t n_vocab, const oe_logit_kernels *kernels,
                              const int32_t *bias_id, const float *bias, int32_t n_bias,
                              const oe_dry_breakers *breakers) {
    oe_sampler *s = calloc(1, sizeof *s);
    if (!s) {
        return NULL;
    }
    s->params = *params;
    s->dry = (oe_dry){.window = params->dry_penalty_last_n, .allowed = params->dry_allowed_length};
    if (breakers) {
        s->dry.breakers = *breakers;
    }
    const bool done = oe_pool_init(&s->pool, kernels, n_vocab) &&
                      oe_penalties_init(&s->penalties, n_vocab, params->repeat_last_n, bias_id, bias, n_bias);
    if (done) {
        plan_chain(s);
    }
    if (!done || !allocate(s)) {
        oe_sampler_destroy(s);
        return NULL;
    }
    oe_sampler_reset(s);
    return s;
}

oe_sampler *oe_sampler_copy(const oe_sampler *from) {
    const oe_penalties *penalties = &from->penalties;
    oe_sampler *s = oe_sampler_create(&from->params, from->pool.n_vocab, from->pool.kernels, penalties->touched,
                                      penalties->bias, penalties->n_bias, &from->dry.breakers);
    if (s && (!oe_penalties_follow(&s->penalties, penalties) || !oe_dry_follow(&s->dry, &from->dry))) {
        oe_sampler_destroy(s);
        return NULL;
    }
    if (s) {
        s->draws = from->draws;
        s->mu = from->mu;
        s->adaptive = from->adaptive;
        s->drawn = from->drawn;
        s->drawn_measure = from->drawn_measure;
    }
    return s;
}

void oe_sampler_destroy(oe_sampler *s) {
    if (!s) {
        return;
    }
    oe_pool_free(&s->pool);
    oe_penalties_free(&s->penalties);
    oe_dry_free(&s->dry);
    free(s->weights);
    free(s);
}

void oe_sampler_reset(oe_sampler *s) {
    oe_penalties_reset(&s->penalties);
    s->dry.n_history = 0;
    s->draws = 0;
    s->drawn = -1;
    s->mu = 2.0 * s->params.mirostat_tau;
    s->adaptive = oe_adaptive_begin(s->params.adaptive_target, s->params.adaptive_decay);
}

uint64_t oe_sampler_draws(const oe_sampler *s) { return s->draws; }

double oe_sampler_mirostat_mu(const oe_sampler *s) { return s->mu; }

double oe_sampler_adaptive_mean(const oe_sampler *s) { return oe_adaptive_mean(&s->adaptive); }

oe_sample_status oe_sampler_accept(oe_sampler *s, const int32_t *tokens, int64_t n) {
    if (n <= 0) {
        return OE_SAMPLE_OK;
    }
    if (s->has_dry && !oe_dry_accept(&s->dry, tokens, n)) {
        return OE_SAMPLE_NO_MEMORY;
    }
    if (s->has_penalties && !oe_penalties_accept(&s->penalties, tokens, n)) {
        s->dry.n_history -= n < s->dry.n_history ? n : s->dry.n_history;
        return OE_SAMPLE_NO_MEMORY;
    }
    if (tokens[0] == s->drawn && s->params.mirostat) {
        s->mu -= s->params.mirostat_eta * (s->drawn_measure - s->params.mirostat_tau);
    }
    if (tokens[0] == s->drawn && s->has_adaptive) {
        oe_adaptive_accept(&s->adaptive, s->params.adaptive_decay, s->drawn_measure);
    }
    s->drawn = -1;
    return OE_SAMPLE_OK;
}
