/* Compiled with -ffp-contract=off, like dist.c. */
#include "sample/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/bitset.h"
#include "sample/dist.h"
#include "sample/penalties.h"
#include "sample/philox.h"
#include "sample/select.h"

struct oe_sampler {
    /* -- parameters -- */
    const oe_logit_kernels *kernels;
    oe_sample_params params;
    int32_t n_vocab;
    bool has_penalties;
    /* -- random stream -- */
    uint64_t draws;
    /* -- what penalties and biases touch; penalties.value: the logit of the current step after both -- */
    oe_penalties penalties;
    /* -- working memory of a step -- */
    float *block_max;
    uint64_t *keys;
    int32_t keys_k; /* the k that `keys` has room for */
    float *dense;   /* [n_vocab] the row to draw from, where it is a long one that differs from the logits */
    oe_dist_scratch dist;
};

static bool top_k_is_on(const oe_sampler *s) { return s->params.top_k > 0 && s->params.top_k < s->n_vocab; }

static bool reserve_keys(oe_sampler *s, int32_t k) {
    if (k > s->keys_k) {
        uint64_t *keys = realloc(s->keys, oe_top_capacity(k) * sizeof *keys);
        if (!keys) {
            return false;
        }
        s->keys = keys;
        s->keys_k = k;
    }
    return true;
}

/* -- life -------------------------------------------------------------------------------------------------------- */

/* The longest row that this sampler may have to draw from. */
static int32_t most_candidates(const oe_sampler *s) { return top_k_is_on(s) ? s->params.top_k : s->n_vocab; }

static int32_t list_capacity(const oe_sampler *s) {
    return most_candidates(s) < OE_DIST_LIST ? most_candidates(s) : OE_DIST_LIST;
}

static bool allocate_dist(oe_sampler *s) {
    const bool is_long = most_candidates(s) > OE_DIST_LIST;
    const size_t list = (size_t)list_capacity(s);
    oe_dist_scratch *dist = &s->dist;
    dist->x = malloc(list * sizeof *dist->x);
    dist->id = malloc(list * sizeof *dist->id);
    dist->candidates = calloc(list, sizeof *dist->candidates);
    if (is_long) {
        dist->bins = malloc(OE_DIST_BINS * sizeof *dist->bins);
        dist->head = malloc(OE_DIST_BINS * sizeof *dist->head);
    }
    const bool needs_dense = is_long && (top_k_is_on(s) || s->has_penalties || s->penalties.n_bias);
    if (needs_dense) {
        s->dense = malloc((size_t)s->n_vocab * sizeof *s->dense);
    }
    return dist->x && dist->id && dist->candidates && (!is_long || (dist->bins && dist->head)) &&
           (!needs_dense || s->dense);
}

static bool allocate(oe_sampler *s) {
    s->block_max = malloc((size_t)oe_block_count(s->n_vocab) * sizeof *s->block_max);
    return s->block_max && reserve_keys(s, top_k_is_on(s) ? s->params.top_k : 1) &&
           (s->params.temperature == 0 || allocate_dist(s));
}

oe_sampler *oe_sampler_create(const oe_sample_params *params, int32_t n_vocab, const oe_logit_kernels *kernels,
                              const int32_t *bias_id, const float *bias, int32_t n_bias) {
    oe_sampler *s = calloc(1, sizeof *s);
    if (!s) {
        return NULL;
    }
    s->kernels = kernels;
    s->params = *params;
    s->n_vocab = n_vocab;
    s->has_penalties = params->repeat_last_n != 0 && (params->repeat_penalty != 1.0f ||
                       params->presence_penalty != 0.0f || params->frequency_penalty != 0.0f);
    if (!oe_penalties_init(&s->penalties, n_vocab, params->repeat_last_n, bias_id, bias, n_bias) || !allocate(s)) {
        oe_sampler_destroy(s);
        return NULL;
    }
    return s;
}

oe_sampler *oe_sampler_copy(const oe_sampler *from) {
    const oe_penalties *penalties = &from->penalties;
    oe_sampler *s = oe_sampler_create(&from->params, from->n_vocab, from->kernels, penalties->touched, penalties->bias,
                                      penalties->n_bias);
    if (s && !oe_penalties_follow(&s->penalties, penalties)) {
        oe_sampler_destroy(s);
        return NULL;
    }
    if (s) {
        s->draws = from->draws;
    }
    return s;
}

void oe_sampler_destroy(oe_sampler *s) {
    if (!s) {
        return;
    }
    void *owned[] = {s->block_max, s->keys,      s->dense, s->dist.x, s->dist.id, s->dist.candidates,
                     s->dist.bins, s->dist.head};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        free(owned[i]);
    }
    oe_penalties_free(&s->penalties);
    free(s);
}

void oe_sampler_reset(oe_sampler *s) {
    oe_penalties_reset(&s->penalties);
    s->draws = 0;
}

uint64_t oe_sampler_draws(const oe_sampler *s) { return s->draws; }

oe_sample_status oe_sampler_accept(oe_sampler *s, const int32_t *tokens, int64_t n) {
    const bool kept = !s->has_penalties || n <= 0 || oe_penalties_accept(&s->penalties, tokens, n);
    return kept ? OE_SAMPLE_OK : OE_SAMPLE_NO_MEMORY;
}

/* -- one step ---------------------------------------------------------------------------------------------------- */

static float below_infinity(float x) { return x <= FLT_MAX ? x : FLT_MAX; } /* for sums that overflowed; -inf stays */

/* Repeat penalty: N. Keskar et al., "CTRL", 2019, section 4.1, with llama.cpp's rule for negative logits (multiply, so
 * that both signs lose). Presence and frequency: OpenAI's API reference. The bias comes last and is added as it is. */
static float touched_logit(const oe_sampler *s, int32_t i, float x) {
    if (s->penalties.count[i] > 0) {
        x = x > 0.0f ? x / s->params.repeat_penalty : x * s->params.repeat_penalty;
        x -= (float)s->penalties.count[i] * s->params.frequency_penalty + s->params.presence_penalty;
    }
    return below_infinity(below_infinity(x) + s->penalties.bias[i]); /* +inf and a ban would be NaN */
}

/* The row of a job after its scan. */
static oe_row make_row(const oe_sample_job *job, int32_t n_allowed) {
    const oe_sampler *s = job->sampler;
    const oe_penalties *p = &s->penalties;
    oe_row row = {.logits = {job->logits, job->mask, s->block_max, s->n_vocab}, .n_allowed = n_allowed};
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

static oe_dist_spec make_spec(const oe_sample_params *params, float max) {
    const double inverse = 1.0 / params->temperature;
    const double rank = params->min_p > 0 ? floor(-log(params->min_p) * OE_RANK_ONE) : OE_RANK_LIMIT;
    const oe_dist_spec spec = {
        .scale = {max, inverse > FLT_MAX ? FLT_MAX : inverse < FLT_MIN ? FLT_MIN : (float)inverse},
        .top_p = params->top_p,
        .min_p_rank = rank < OE_RANK_LIMIT ? (uint32_t)rank : OE_RANK_LIMIT,
    };
    return spec;
}

/* Into the list to draw from: a short row, the allowed entries of a row that has few, or the top-k. */
static int32_t list_row(const oe_sampler *s, const oe_row *row) {
    for (int32_t i = 0; i < s->n_vocab; i++) {
        s->dist.x[i] = row->logits.x[i];
        s->dist.id[i] = i;
    }
    for (int32_t i = 0; i < row->n_touched; i++) {
        s->dist.x[row->touched[i]] = row->value[i];
    }
    return s->n_vocab;
}

/* Stops where the list is full, for another thread may change the mask after it was counted. */
static int32_t list_allowed(const oe_sampler *s, const oe_row *row) {
    const oe_logits *logits = &row->logits;
    const int32_t room = list_capacity(s);
    int32_t n = 0;
    for (int32_t b = 0; b < oe_block_count(logits->n); b++) {
        for (uint64_t bits = oe_allowed(logits->mask, logits->n, b); bits && n < room; bits &= bits - 1) {
            const int32_t i = b * OE_BLOCK + oe_bitset_lowest(bits);
            s->dist.x[n] = oe_row_is_touched(row, i) ? row->value[row->slot[i] - 1] : logits->x[i];
            s->dist.id[n++] = i;
        }
    }
    return n;
}

static int32_t list_top(const oe_sampler *s, int32_t n_top) {
    for (int32_t i = 0; i < n_top; i++) {
        s->dist.x[i] = oe_key_logit(s->keys[i]);
        s->dist.id[i] = oe_key_id(s->keys[i]);
    }
    return n_top;
}

static float dense_max(const oe_sampler *s, const uint32_t *mask, int32_t block) {
    const int32_t start = block * OE_BLOCK;
    const int32_t end = s->n_vocab - start < OE_BLOCK ? s->n_vocab : start + OE_BLOCK;
    float max = -INFINITY;
    for (int32_t i = start; i < end; i++) {
        max = s->dense[i] > max && oe_is_allowed(mask, i) ? s->dense[i] : max;
    }
    return max;
}

static void put_dense(oe_sampler *s, const uint32_t *mask, int32_t id, float x) {
    float *max = &s->block_max[id / OE_BLOCK];
    const float before = s->dense[id];
    s->dense[id] = x;
    if (x >= *max) {
        *max = x;
    } else if (before == *max) {
        *max = dense_max(s, mask, id / OE_BLOCK);
    }
}

/* As a row of its own: the logits with the touched ones in place, or the top-k, all others being at -inf. */
static oe_logits dense_row(oe_sampler *s, const oe_row *row) {
    if (!row->n_touched) {
        return row->logits;
    }
    memcpy(s->dense, row->logits.x, (size_t)s->n_vocab * sizeof *s->dense);
    for (int32_t i = 0; i < row->n_touched; i++) {
        put_dense(s, row->logits.mask, row->touched[i], row->value[i]);
    }
    return (oe_logits){s->dense, row->logits.mask, s->block_max, s->n_vocab};
}

static oe_logits dense_top(oe_sampler *s, int32_t n_top) {
    for (int32_t i = 0; i < s->n_vocab; i++) {
        s->dense[i] = -INFINITY;
    }
    for (int32_t i = 0; i < oe_block_count(s->n_vocab); i++) {
        s->block_max[i] = -INFINITY;
    }
    for (int32_t i = 0; i < n_top; i++) {
        put_dense(s, NULL, oe_key_id(s->keys[i]), oe_key_logit(s->keys[i]));
    }
    return (oe_logits){s->dense, NULL, s->block_max, s->n_vocab};
}

static int32_t draw(oe_sampler *s, const oe_row *row, int32_t n_top, float max) {
    const oe_dist_spec spec = make_spec(&s->params, max);
    const uint64_t random = oe_philox_u64(s->params.seed, s->draws++);
    const bool from_top = top_k_is_on(s);
    if ((from_top ? n_top : row->n_allowed) <= OE_DIST_LIST) {
        const int32_t n = from_top ? list_top(s, n_top) : row->logits.mask ? list_allowed(s, row) : list_row(s, row);
        return oe_dist_draw_list(s->kernels, n, &spec, random, &s->dist);
    }
    const oe_logits logits = from_top ? dense_top(s, n_top) : dense_row(s, row);
    return oe_dist_draw_row(s->kernels, &logits, &spec, random, &s->dist);
}

/* Fills block_max and *n_allowed; false, with the job's status, for logits that are NaN or +inf. */
static bool scan(oe_sample_job *job, const uint32_t *mask, int32_t *n_allowed) {
    oe_sampler *s = job->sampler;
    job->status = OE_SAMPLE_OK;
    *n_allowed = s->kernels->scan(job->logits, s->n_vocab, mask, s->block_max);
    if (*n_allowed < 0) {
        job->status = OE_SAMPLE_BAD_LOGITS;
        oe_row_find_bad(job->logits, s->n_vocab, &job->bad_first, &job->bad_count);
    }
    return job->status == OE_SAMPLE_OK;
}

static void run_job(oe_sample_job *job) {
    oe_sampler *s = job->sampler;
    int32_t n_allowed;
    if (!scan(job, job->mask, &n_allowed)) {
        return;
    }
    const bool greedy = s->params.temperature == 0;
    const oe_row row = make_row(job, n_allowed);
    if (greedy && !row.n_touched) {
        job->token = oe_row_best(&row);
        job->status = job->token < 0 ? OE_SAMPLE_NO_TOKEN : OE_SAMPLE_OK;
        return;
    }
    const int32_t n_top = oe_row_top(s->kernels, &row, !greedy && top_k_is_on(s) ? s->params.top_k : 1, s->keys);
    if (n_top == 0) {
        job->status = OE_SAMPLE_NO_TOKEN;
        return;
    }
    uint64_t best = s->keys[0];
    for (int32_t i = 1; i < n_top; i++) {
        best = s->keys[i] > best ? s->keys[i] : best;
    }
    job->token = greedy ? oe_key_id(best) : draw(s, &row, n_top, oe_key_logit(best));
}

void oe_sampler_run(oe_sample_job *jobs, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        run_job(&jobs[i]);
    }
}

/* -- log-probabilities ------------------------------------------------------------------------------------------- */

static int compare_descending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

void oe_sampler_logprobs(oe_sample_job *job, double *logprob, int32_t top, int32_t *top_id, double *top_logprob,
                         int32_t *n_top) {
    oe_sampler *s = job->sampler;
    const int32_t k = top > 0 ? top : 1;
    int32_t n_allowed;
    if (!scan(job, NULL, &n_allowed)) {
        return;
    }
    if (!reserve_keys(s, k)) {
        job->status = OE_SAMPLE_NO_MEMORY;
        return;
    }
    const oe_row row = {.logits = {job->logits, NULL, s->block_max, s->n_vocab}, .n_allowed = n_allowed};
    const int32_t found = oe_row_top(s->kernels, &row, k, s->keys);
    if (found == 0) {
        job->status = OE_SAMPLE_NO_TOKEN;
        return;
    }
    qsort(s->keys, (size_t)found, sizeof *s->keys, compare_descending);
    const float max = oe_key_logit(s->keys[0]);
    const oe_window none = {0, 0};
    const oe_weights weights = s->kernels->sum(&row.logits, (oe_scale){max, 1.0f}, OE_RANK_LIMIT, none, 0, NULL);
    const double log_total = log((double)weights.total / (double)OE_WEIGHT_ONE);
    *logprob = ((double)job->logits[job->token] - max) - log_total;
    *n_top = found < top ? found : top;
    for (int32_t i = 0; i < *n_top; i++) {
        top_id[i] = oe_key_id(s->keys[i]);
        top_logprob[i] = ((double)oe_key_logit(s->keys[i]) - max) - log_total;
    }
}
