/* Compiled with -ffp-contract=off, like dist.c. */
#include "sample/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "sample/dist.h"
#include "sample/exact_math.h"
#include "sample/philox.h"
#include "sample/sampler.h"
#include "sample/select.h"

/* -- penalties ----------------------------------------------------------------------------------------------------- */

static float below_infinity(float x) { return x <= FLT_MAX ? x : FLT_MAX; } /* for what overflowed; -inf stays */

/* Repeat penalty: N. Keskar et al., "CTRL", 2019, section 4.1, with llama.cpp's rule for negative logits (multiply, so
 * that both signs lose). Presence and frequency: OpenAI's API reference. DRY: see dry.h. */
static float penalized(const oe_sampler *s, oe_link link, int32_t i, float x) {
    const oe_penalties *p = &s->penalties;
    const oe_sample_params *q = &s->params;
    if (link == OE_LINK_PENALTIES && p->count[i] > 0) {
        x = x > 0.0f ? x / q->repeat_penalty : x * q->repeat_penalty;
        x -= (float)p->count[i] * q->frequency_penalty + q->presence_penalty;
    }
    if (link == OE_LINK_DRY && p->repeat[i] > 0) {
        const double beyond = (double)(p->repeat[i] - q->dry_allowed_length);
        const double penalty = q->dry_multiplier * oe_exp(beyond * oe_log(q->dry_base));
        x -= penalty < FLT_MAX ? (float)penalty : FLT_MAX;
    }
    return below_infinity(x);
}

static float touched_logit(const oe_sampler *s, int32_t i, float x) {
    x = below_infinity(x + s->penalties.bias[i]);
    for (int32_t link = 0; link < s->n_lead; link++) {
        x = penalized(s, s->links[link], i, x);
    }
    return x;
}

static bool find_repetitions(oe_sampler *s) {
    if (!s->has_dry) {
        return true;
    }
    const int64_t n = oe_dry_scan(&s->dry);
    bool done = n >= 0;
    for (int64_t i = 0; done && i < n; i++) {
        const oe_dry_hit hit = oe_dry_hit_at(&s->dry, i);
        if (hit.length > 0 && !oe_dry_is_breaker(&s->dry, hit.token)) {
            done = oe_penalties_repeats(&s->penalties, hit.token, hit.length);
        }
    }
    return done;
}

/* Penalties or DRY behind a sampler that has cut the candidates or changed their temperature. */
static bool penalize_list(oe_sampler *s, oe_link link) {
    oe_pool *pool = &s->pool;
    const int32_t *slot = s->penalties.slot;
    if (!oe_pool_to_list(pool)) {
        return false;
    }
    for (int32_t i = 0; i < pool->n; i++) {
        const int32_t id = pool->dist.id[i];
        const double scaled = (double)pool->dist.x[i] * pool->inverse;
        const float x = (float)(scaled < FLT_MAX ? (scaled > -FLT_MAX ? scaled : -FLT_MAX) : FLT_MAX);
        pool->dist.x[i] = slot && slot[id] ? penalized(s, link, slot[id] - 1, x) : x;
    }
    pool->inverse = 1.0;
    return oe_pool_keep_above(pool, -INFINITY);
}

/* -- one step ---------------------------------------------------------------------------------------------------- */

/* The row of a job after its scan. */
static oe_row make_row(const oe_sample_job *job, int32_t n_allowed) {
    const oe_sampler *s = job->sampler;
    const oe_penalties *p = &s->penalties;
    oe_row row = {.logits = {job->logits, job->mask, s->pool.block_max, s->pool.n_vocab}, .n_allowed = n_allowed};
    if (p->n_touched) {
        for (int32_t i = 0; i < p->n_touched; i++) {
            const float x = oe_is_allowed(job->mask, p->touched[i]) ? job->logits[p->touched[i]] : -INFINITY;
            p->value[i] = touched_logit(s, i, x);
        }
        row.n_touched = p->n_touched;
        row.touched = p->touched;
        row.value = p->value;
        row.slot = p->slot;
    }
    return row;
}

/* Whether no bias, penalty or repetition makes a logit larger. */
static bool only_lowers(const oe_sampler *s) {
    const oe_sample_params *q = &s->params;
    for (int32_t i = 0; i < s->penalties.n_bias; i++) {
        if (s->penalties.bias[i] > 0.0f) {
            return false;
        }
    }
    return !s->has_penalties ||
           (q->repeat_penalty >= 1.0f && q->presence_penalty >= 0.0f && q->frequency_penalty >= 0.0f);
}

/* Of the n best logits, at most as many are lowered as tokens can be touched. So if those are added to what the chain
 * needs, as many as it needs stay above all others. */
int32_t oe_sampler_best_needed(const oe_sampler *s) {
    const bool is_short = s->is_greedy || oe_sampler_begins_with_top_k(s);
    const int32_t recent = s->has_penalties ? s->params.repeat_last_n : 0;
    const int32_t repeating = s->has_dry ? s->params.dry_penalty_last_n : 0;
    if (!is_short || recent < 0 || repeating < 0 || !only_lowers(s)) {
        return 0;
    }
    const int64_t touched = (int64_t)s->penalties.n_bias + recent + repeating;
    const int64_t needed = touched + (s->is_greedy ? 1 : s->params.top_k);
    return needed < s->pool.n_vocab ? (int32_t)needed : 0;
}

static oe_sample_status status_of(bool done) { return done ? OE_SAMPLE_OK : OE_SAMPLE_NO_MEMORY; }

/* The candidates before the chain: a row, or a list where that is shorter. */
static oe_sample_status begin(oe_sampler *s, const oe_row *row) {
    oe_pool *pool = &s->pool;
    oe_pool_start(pool, row, -INFINITY);
    if (oe_sampler_begins_with_top_k(s)) {
        return OE_SAMPLE_OK;
    }
    if (row->n_allowed <= OE_DIST_LIST) {
        const bool done = oe_pool_to_list(pool);
        return done && pool->n == 0 ? OE_SAMPLE_NO_TOKEN : status_of(done);
    }
    if (!oe_row_top(pool->kernels, row, 1, pool->keys)) {
        return OE_SAMPLE_NO_TOKEN;
    }
    pool->max = oe_key_logit(pool->keys[0]);
    return OE_SAMPLE_OK;
}

/* Whether all that is left to do from this link on is top-p and min-p, which drawing from a row does by the way. */
static bool is_fused(const oe_sampler *s, int32_t link) {
    if (s->pool.is_list || s->has_adaptive || s->params.mirostat || s->params.min_keep > 1 || link == s->n_links ||
        s->links[link] != OE_LINK_TOP_P) {
        return false;
    }
    link += 1;
    link += link < s->n_links && s->links[link] == OE_LINK_MIN_P;
    return link == s->n_links;
}

/* Candidates after the chain; *fused says at which link it stopped, since drawing can do the rest. */
static oe_sample_status run_chain(oe_sampler *s, const oe_row *row, uint64_t random, int32_t *fused) {
    oe_pool *pool = &s->pool;
    oe_sample_status status = begin(s, row);
    int32_t i = s->n_lead;
    for (; status == OE_SAMPLE_OK && i < s->n_links && !(fused && is_fused(s, i)); i++) {
        const oe_link link = s->links[i];
        status = status_of(oe_link_is_overlay(link) ? penalize_list(s, link)
                                                    : oe_chain_apply(pool, &s->params, link, random));
        status = status == OE_SAMPLE_OK && pool->is_list && pool->n == 0 ? OE_SAMPLE_NO_TOKEN : status;
    }
    if (fused) {
        *fused = i;
    }
    if (status == OE_SAMPLE_OK && s->params.mirostat) {
        status = status_of(oe_chain_mirostat(pool, s->params.mirostat, s->mu));
    }
    return status;
}

static bool adapt(oe_sampler *s) {
    oe_pool *pool = &s->pool;
    if (!oe_pool_to_list(pool)) {
        return false;
    }
    if (pool->n > s->weights_capacity) {
        uint64_t *grown = realloc(s->weights, (size_t)pool->list_capacity * sizeof *grown);
        if (!grown) {
            return false;
        }
        s->weights = grown;
        s->weights_capacity = pool->list_capacity;
    }
    oe_adaptive_transform(&s->adaptive, s->params.adaptive_target, pool, s->weights);
    return true;
}

/* What accepting this candidate will change the state by. */
static double measure_of(const oe_sampler *s, oe_candidate drawn, uint64_t total) {
    if (s->params.mirostat) {
        return (oe_log((double)total) - oe_log((double)(drawn.weight ? drawn.weight : 1))) / OE_LN2;
    }
    return s->has_adaptive ? oe_adaptive_probability(&s->pool, s->weights, (int32_t)(uint32_t)drawn.order) : 0.0;
}

static oe_sample_status draw(oe_sampler *s, int32_t fused, uint64_t random, int32_t *token) {
    oe_pool *pool = &s->pool;
    if (s->has_adaptive && !adapt(s)) {
        return OE_SAMPLE_NO_MEMORY;
    }
    if (pool->is_list) {
        uint64_t before;
        if (pool->n == 0) {
            return OE_SAMPLE_NO_TOKEN;
        }
        const uint64_t total = oe_pool_weigh(pool);
        const oe_candidate drawn =
            oe_dist_select(pool->dist.candidates, pool->n, oe_dist_uniform(random, total) + 1, &before);
        *token = (int32_t)(uint32_t)drawn.order;
        s->drawn_measure = measure_of(s, drawn, total);
        return OE_SAMPLE_OK;
    }
    oe_logits logits;
    if (!oe_pool_settle(pool, &logits)) {
        return OE_SAMPLE_NO_MEMORY;
    }
    oe_dist_spec spec = {oe_pool_scale(pool), 1.0, OE_RANK_LIMIT};
    for (int32_t i = fused; i < s->n_links; i++) {
        spec.top_p = s->links[i] == OE_LINK_TOP_P ? s->params.top_p : spec.top_p;
        spec.min_p_rank = s->links[i] == OE_LINK_MIN_P ? oe_chain_rank_of(s->params.min_p) : spec.min_p_rank;
    }
    *token = oe_dist_draw_row(pool->kernels, &logits, &spec, random, &pool->dist);
    return OE_SAMPLE_OK;
}

/* As the kernels' scan of a row whose other logits are -inf: it looks at the known ones alone. -1 likewise. */
static int32_t scan_known(const oe_sample_job *job, oe_pool *pool) {
    for (int32_t b = 0; b < oe_block_count(pool->n_vocab); b++) {
        pool->block_max[b] = -INFINITY;
    }
    for (int32_t i = 0; i < job->n_known; i++) {
        const float x = job->logits[job->known[i]];
        float *max = &pool->block_max[job->known[i] / OE_BLOCK];
        if (!(x <= FLT_MAX)) {
            return -1;
        }
        *max = x > *max ? x : *max;
    }
    return pool->n_vocab;
}

/* Fills block_max and *n_allowed; false, with the job's status, for logits that are NaN or +inf. */
static bool scan(oe_sample_job *job, const uint32_t *mask, int32_t *n_allowed) {
    oe_pool *pool = &job->sampler->pool;
    job->status = OE_SAMPLE_OK;
    *n_allowed = job->n_known && !mask ? scan_known(job, pool)
                                       : pool->kernels->scan(job->logits, pool->n_vocab, mask, pool->block_max);
    if (*n_allowed < 0) {
        job->status = OE_SAMPLE_BAD_LOGITS;
        oe_row_find_bad(job->logits, pool->n_vocab, &job->bad_first, &job->bad_count);
    }
    return job->status == OE_SAMPLE_OK;
}

static oe_sample_status take_best(oe_sampler *s, const oe_row *row, int32_t *token) {
    if (!row->n_touched) {
        *token = oe_row_best(row);
        return *token < 0 ? OE_SAMPLE_NO_TOKEN : OE_SAMPLE_OK;
    }
    if (!oe_row_top(s->pool.kernels, row, 1, s->pool.keys)) {
        return OE_SAMPLE_NO_TOKEN;
    }
    *token = oe_key_id(s->pool.keys[0]);
    return OE_SAMPLE_OK;
}

static oe_sample_status choose(oe_sampler *s, const oe_row *row, int32_t *token) {
    if (s->is_greedy) {
        return take_best(s, row, token);
    }
    int32_t fused;
    const oe_philox_draw random = oe_philox(s->params.seed, s->draws);
    oe_sample_status status = run_chain(s, row, random.second, &fused);
    status = status == OE_SAMPLE_OK ? draw(s, fused, random.first, token) : status;
    s->draws += status == OE_SAMPLE_OK;
    return status;
}

static void run_job(oe_sample_job *job) {
    oe_sampler *s = job->sampler;
    int32_t n_allowed;
    if (!scan(job, job->mask, &n_allowed)) {
        return;
    }
    job->status = status_of(find_repetitions(s));
    if (job->status == OE_SAMPLE_OK) {
        const oe_row row = make_row(job, n_allowed);
        job->status = choose(s, &row, &job->token);
    }
    oe_penalties_end_step(&s->penalties);
    if (job->status == OE_SAMPLE_OK) {
        s->drawn = job->token;
    }
}

void oe_sampler_run(oe_sample_job *jobs, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        run_job(&jobs[i]);
    }
}

static void verify(oe_draft_job *d) {
    oe_sample_job *job = &d->job;
    d->n = 0;
    do {
        run_job(job);
        if (job->status == OE_SAMPLE_OK) {
            job->status = oe_sampler_accept(job->sampler, &job->token, 1);
        }
        if (job->status != OE_SAMPLE_OK) {
            return;
        }
        job->logits += d->stride;
        d->tokens[d->n++] = job->token;
    } while (d->n <= d->n_draft && d->draft[d->n - 1] == job->token);
}

void oe_sampler_verify(oe_draft_job *jobs, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        verify(&jobs[i]);
    }
}

/* -- candidates ---------------------------------------------------------------------------------------------------- */

static int32_t list_candidates(oe_sampler *s, int32_t *id, double *p) {
    oe_pool *pool = &s->pool;
    const uint64_t total = oe_pool_weigh(pool);
    for (int32_t i = 0; i < pool->n; i++) {
        id[i] = pool->dist.id[i];
        p[i] = (double)pool->dist.candidates[i].weight / (double)total;
    }
    return pool->n;
}

int32_t oe_sampler_candidates(oe_sample_job *job, int32_t *id, double *p) {
    oe_sampler *s = job->sampler;
    int32_t n_allowed;
    if (!scan(job, job->mask, &n_allowed)) {
        return 0;
    }
    job->status = status_of(find_repetitions(s));
    if (job->status == OE_SAMPLE_OK && s->is_greedy) {
        const oe_row row = make_row(job, n_allowed);
        job->status = take_best(s, &row, &id[0]);
        p[0] = 1.0;
        oe_penalties_end_step(&s->penalties);
        return job->status == OE_SAMPLE_OK;
    }
    if (job->status == OE_SAMPLE_OK) {
        const oe_row row = make_row(job, n_allowed);
        job->status = run_chain(s, &row, oe_philox(s->params.seed, s->draws).second, NULL);
    }
    if (job->status == OE_SAMPLE_OK) {
        job->status = status_of(s->has_adaptive ? adapt(s) : oe_pool_to_list(&s->pool));
    }
    oe_penalties_end_step(&s->penalties);
    return job->status == OE_SAMPLE_OK ? list_candidates(s, id, p) : 0;
}

/* -- log-probabilities ------------------------------------------------------------------------------------------- */

void oe_sampler_logprobs(oe_sample_job *job, double *logprob, int32_t top, int32_t *top_id, double *top_logprob,
                         int32_t *n_top) {
    oe_pool *pool = &job->sampler->pool;
    int32_t n_allowed;
    if (!scan(job, NULL, &n_allowed)) {
        return;
    }
    const oe_row row = {.logits = {job->logits, NULL, pool->block_max, pool->n_vocab}, .n_allowed = n_allowed};
    oe_pool_start(pool, &row, -INFINITY);
    const int32_t found = oe_pool_best(pool, top > 0 ? top : 1);
    if (found <= 0) {
        job->status = found < 0 ? OE_SAMPLE_NO_MEMORY : OE_SAMPLE_NO_TOKEN;
        return;
    }
    const float max = oe_key_logit(pool->keys[0]);
    const oe_window none = {0, 0};
    const oe_weights weights = pool->kernels->sum(&row.logits, (oe_scale){max, 1.0f}, OE_RANK_LIMIT, none, 0, NULL);
    const double log_total = log((double)weights.total / (double)OE_WEIGHT_ONE);
    *logprob = ((double)job->logits[job->token] - max) - log_total;
    *n_top = found < top ? found : top;
    for (int32_t i = 0; i < *n_top; i++) {
        top_id[i] = oe_key_id(pool->keys[i]);
        top_logprob[i] = ((double)oe_key_logit(pool->keys[i]) - max) - log_total;
    }
}
