/* Compiled with -ffp-contract=off, like dist.c. */
#include "sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "dist.h"
#include "philox.h"
#include "select.h"

struct oe_sampler {
    /* -- parameters -- */
    const oe_row_kernels *kernels;
    oe_sample_params params;
    int32_t n_vocab;
    int32_t n_bias;
    bool has_penalties;
    /* -- random stream -- */
    uint64_t draws;
    /* -- history: the last n_recent accepted tokens, oldest at recent[recent_start]; unused without a window -- */
    int32_t *recent; /* [recent_capacity], a ring once it holds repeat_last_n */
    int32_t recent_capacity, n_recent, recent_start;
    /* -- touched tokens: the biased ones first, for good, then those in the history -- */
    int32_t *slot; /* [n_vocab] 1 + index below, 0 where untouched; NULL when nothing can be touched */
    int32_t *touched, *count;
    float *bias, *value; /* value: the logit of the current step after penalties and bias */
    int32_t n_touched, touched_capacity;
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

static bool reserve_touched(oe_sampler *s, int32_t more) {
    if (!s->slot && !(s->slot = calloc((size_t)s->n_vocab, sizeof *s->slot))) {
        return false;
    }
    if (s->n_touched + more <= s->touched_capacity) {
        return true;
    }
    int64_t capacity = 2 * ((int64_t)s->n_touched + more);
    capacity = capacity < s->n_vocab ? capacity : s->n_vocab;
    const size_t size = (size_t)capacity * sizeof(int32_t);
    void *grown[4] = {s->touched, s->count, s->bias, s->value};
    bool done = true;
    for (int i = 0; i < 4; i++) {
        void *moved = realloc(grown[i], size);
        grown[i] = moved ? moved : grown[i];
        done = done && moved;
    }
    s->touched = grown[0], s->count = grown[1], s->bias = grown[2], s->value = grown[3];
    s->touched_capacity = done ? (int32_t)capacity : s->touched_capacity;
    return done;
}

/* -- life -------------------------------------------------------------------------------------------------------- */

/* The longest row that this sampler may have to draw from. */
static int32_t most_candidates(const oe_sampler *s) { return top_k_is_on(s) ? s->params.top_k : s->n_vocab; }

static bool allocate_dist(oe_sampler *s) {
    const bool is_long = most_candidates(s) > OE_DIST_LIST;
    const size_t list = is_long ? OE_DIST_LIST : (size_t)most_candidates(s);
    oe_dist_scratch *dist = &s->dist;
    dist->x = malloc(list * sizeof *dist->x);
    dist->id = malloc(list * sizeof *dist->id);
    dist->candidates = calloc(list, sizeof *dist->candidates);
    if (is_long) {
        dist->bins = malloc(OE_DIST_BINS * sizeof *dist->bins);
        dist->head = malloc(OE_DIST_BINS * sizeof *dist->head);
    }
    const bool needs_dense = is_long && (top_k_is_on(s) || s->has_penalties || s->n_bias);
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

static int32_t touch(oe_sampler *s, int32_t token) {
    if (!s->slot[token]) {
        s->touched[s->n_touched] = token;
        s->count[s->n_touched] = 0;
        s->bias[s->n_touched] = 0.0f;
        s->slot[token] = ++s->n_touched;
    }
    return s->slot[token] - 1;
}

oe_sampler *oe_sampler_create(const oe_sample_params *params, int32_t n_vocab, const oe_row_kernels *kernels,
                              const int32_t *bias_id, const float *bias, int32_t n_bias) {
    oe_sampler *s = calloc(1, sizeof *s);
    if (!s) {
        return NULL;
    }
    s->kernels = kernels;
    s->params = *params;
    s->n_vocab = n_vocab;
    s->n_bias = n_bias;
    s->has_penalties = params->repeat_last_n != 0 && (params->repeat_penalty != 1.0f ||
                       params->presence_penalty != 0.0f || params->frequency_penalty != 0.0f);
    if (!allocate(s) || (n_bias && !reserve_touched(s, n_bias))) {
        oe_sampler_destroy(s);
        return NULL;
    }
    for (int32_t i = 0; i < n_bias; i++) {
        s->bias[touch(s, bias_id[i])] = bias[i];
    }
    return s;
}

oe_sampler *oe_sampler_copy(const oe_sampler *from) {
    oe_sampler *s = oe_sampler_create(&from->params, from->n_vocab, from->kernels, from->touched, from->bias,
                                      from->n_bias);
    if (!s) {
        return NULL;
    }
    const int32_t more = from->n_touched - from->n_bias;
    if (from->n_recent) {
        s->recent = malloc((size_t)from->recent_capacity * sizeof *s->recent);
    }
    if ((more && !reserve_touched(s, more)) || (from->n_recent && !s->recent)) {
        oe_sampler_destroy(s);
        return NULL;
    }
    for (int32_t i = 0; i < from->n_touched; i++) {
        s->count[touch(s, from->touched[i])] = from->count[i];
    }
    if (from->n_recent) {
        memcpy(s->recent, from->recent, (size_t)from->recent_capacity * sizeof *s->recent);
        s->recent_capacity = from->recent_capacity;
    }
    s->n_recent = from->n_recent;
    s->recent_start = from->recent_start;
    s->draws = from->draws;
    return s;
}

void oe_sampler_destroy(oe_sampler *s) {
    if (!s) {
        return;
    }
    void *owned[] = {s->recent,    s->slot, s->touched, s->count,   s->bias,    s->value,           s->block_max,
                     s->keys,      s->dense, s->dist.x, s->dist.id, s->dist.candidates, s->dist.bins, s->dist.head};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        free(owned[i]);
    }
    free(s);
}

void oe_sampler_reset(oe_sampler *s) {
    for (int32_t i = s->n_bias; i < s->n_touched; i++) {
        s->slot[s->touched[i]] = 0;
    }
    for (int32_t i = 0; i < s->n_bias; i++) {
        s->count[i] = 0;
    }
    s->n_touched = s->n_bias;
    s->n_recent = s->recent_start = 0;
    s->draws = 0;
}

uint64_t oe_sampler_draws(const oe_sampler *s) { return s->draws; }

/* -- history ----------------------------------------------------------------------------------------------------- */

static void forget(oe_sampler *s, int32_t token) {
    const int32_t i = s->slot[token] - 1;
    if (--s->count[i] > 0 || i < s->n_bias) {
        return;
    }
    const int32_t last = --s->n_touched;
    s->touched[i] = s->touched[last];
    s->count[i] = s->count[last];
    s->bias[i] = s->bias[last];
    s->slot[s->touched[i]] = i + 1;
    s->slot[token] = 0;
}

static bool reserve_recent(oe_sampler *s, int64_t more) {
    const int32_t window = s->params.repeat_last_n;
    int64_t needed = s->n_recent + more;
    needed = needed < window ? needed : window;
    if (needed <= s->recent_capacity) {
        return true;
    }
    int64_t capacity = 2 * needed < window ? 2 * needed : window; /* not a ring before it is full: nothing to unroll */
    int32_t *recent = realloc(s->recent, (size_t)capacity * sizeof *recent);
    if (recent) {
        s->recent = recent;
        s->recent_capacity = (int32_t)capacity;
    }
    return recent != NULL;
}

static void remember(oe_sampler *s, int32_t token) {
    const int32_t window = s->params.repeat_last_n;
    if (window > 0 && s->n_recent == window) {
        const int32_t oldest = s->recent[s->recent_start];
        s->recent[s->recent_start] = token;
        s->recent_start = s->recent_start + 1 == window ? 0 : s->recent_start + 1;
        s->count[touch(s, token)] += 1; /* first, so that a token which leaves and enters keeps its slot */
        forget(s, oldest);
        return;
    }
    if (window > 0) {
        s->recent[s->n_recent++] = token;
    }
    s->count[touch(s, token)] += 1;
}

oe_sample_status oe_sampler_accept(oe_sampler *s, const int32_t *tokens, int64_t n) {
    const int32_t window = s->params.repeat_last_n;
    if (!s->has_penalties || n <= 0) {
        return OE_SAMPLE_OK;
    }
    if (window > 0 && n > window) { /* the others would be forgotten before the call ends */
        tokens += n - window;
        n = window;
    }
    const int32_t untouched = s->n_vocab - s->n_touched;
    if (!reserve_touched(s, n < untouched ? (int32_t)n : untouched) || (window > 0 && !reserve_recent(s, n))) {
        return OE_SAMPLE_NO_MEMORY;
    }
    for (int64_t i = 0; i < n; i++) {
        remember(s, tokens[i]);
    }
    return OE_SAMPLE_OK;
}

/* -- one step ---------------------------------------------------------------------------------------------------- */

static float below_infinity(float x) { return x <= FLT_MAX ? x : FLT_MAX; } /* for sums that overflowed; -inf stays */

/* Repeat penalty: N. Keskar et al., "CTRL", 2019, section 4.1, with llama.cpp's rule for negative logits (multiply, so
 * that both signs lose). Presence and frequency: OpenAI's API reference. The bias comes last and is added as it is. */
static float touched_logit(const oe_sampler *s, int32_t i, float x) {
    if (s->count[i] > 0) {
        x = x > 0.0f ? x / s->params.repeat_penalty : x * s->params.repeat_penalty;
        x -= (float)s->count[i] * s->params.frequency_penalty + s->params.presence_penalty;
    }
    return below_infinity(below_infinity(x) + s->bias[i]); /* +inf and a ban would be NaN */
}

static oe_row make_row(const oe_sampler *s, const float *logits) {
    oe_row row = {.logits = {logits, s->block_max, s->n_vocab}};
    if (s->n_touched) {
        for (int32_t i = 0; i < s->n_touched; i++) {
            s->value[i] = touched_logit(s, i, logits[s->touched[i]]);
        }
        row.n_touched = s->n_touched;
        row.touched = s->touched;
        row.value = s->value;
        row.slot = s->slot;
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

/* Into the list to draw from: a short row, or the top-k. */
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

static int32_t list_top(const oe_sampler *s, int32_t n_top) {
    for (int32_t i = 0; i < n_top; i++) {
        s->dist.x[i] = oe_key_logit(s->keys[i]);
        s->dist.id[i] = oe_key_id(s->keys[i]);
    }
    return n_top;
}

static float dense_max(const oe_sampler *s, int32_t block) {
    const int32_t start = block * OE_BLOCK;
    const int32_t end = s->n_vocab - start < OE_BLOCK ? s->n_vocab : start + OE_BLOCK;
    float max = -INFINITY;
    for (int32_t i = start; i < end; i++) {
        max = s->dense[i] > max ? s->dense[i] : max;
    }
    return max;
}

static void put_dense(oe_sampler *s, int32_t id, float x) {
    float *max = &s->block_max[id / OE_BLOCK];
    const float before = s->dense[id];
    s->dense[id] = x;
    if (x >= *max) {
        *max = x;
    } else if (before == *max) {
        *max = dense_max(s, id / OE_BLOCK);
    }
}

/* As a row of its own: the logits with the touched ones in place, or the top-k, all others being at -inf. */
static oe_logits dense_row(oe_sampler *s, const oe_row *row) {
    if (!row->n_touched) {
        return row->logits;
    }
    memcpy(s->dense, row->logits.x, (size_t)s->n_vocab * sizeof *s->dense);
    for (int32_t i = 0; i < row->n_touched; i++) {
        put_dense(s, row->touched[i], row->value[i]);
    }
    return (oe_logits){s->dense, s->block_max, s->n_vocab};
}

static oe_logits dense_top(oe_sampler *s, int32_t n_top) {
    for (int32_t i = 0; i < s->n_vocab; i++) {
        s->dense[i] = -INFINITY;
    }
    for (int32_t i = 0; i < oe_block_count(s->n_vocab); i++) {
        s->block_max[i] = -INFINITY;
    }
    for (int32_t i = 0; i < n_top; i++) {
        put_dense(s, oe_key_id(s->keys[i]), oe_key_logit(s->keys[i]));
    }
    return (oe_logits){s->dense, s->block_max, s->n_vocab};
}

static int32_t draw(oe_sampler *s, const oe_row *row, int32_t n_top, float max) {
    const oe_dist_spec spec = make_spec(&s->params, max);
    const uint64_t random = oe_philox_u64(s->params.seed, s->draws++);
    const bool from_top = top_k_is_on(s);
    if ((from_top ? n_top : s->n_vocab) <= OE_DIST_LIST) {
        const int32_t n = from_top ? list_top(s, n_top) : list_row(s, row);
        return oe_dist_draw_list(s->kernels, n, &spec, random, &s->dist);
    }
    const oe_logits logits = from_top ? dense_top(s, n_top) : dense_row(s, row);
    return oe_dist_draw_row(s->kernels, &logits, &spec, random, &s->dist);
}

static bool scan(oe_sample_job *job) {
    oe_sampler *s = job->sampler;
    job->status = OE_SAMPLE_OK;
    if (!s->kernels->scan(job->logits, s->n_vocab, s->block_max)) {
        job->status = OE_SAMPLE_BAD_LOGITS;
        oe_row_find_bad(job->logits, s->n_vocab, &job->bad_first, &job->bad_count);
    }
    return job->status == OE_SAMPLE_OK;
}

static void run_job(oe_sample_job *job) {
    oe_sampler *s = job->sampler;
    if (!scan(job)) {
        return;
    }
    const bool greedy = s->params.temperature == 0;
    const oe_row row = make_row(s, job->logits);
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
    if (!scan(job)) {
        return;
    }
    if (!reserve_keys(s, k)) {
        job->status = OE_SAMPLE_NO_MEMORY;
        return;
    }
    const oe_row row = {.logits = {job->logits, s->block_max, s->n_vocab}};
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
