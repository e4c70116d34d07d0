/* A sampler: parameters, random stream, token history and state of one sequence, and the working memory for one step.
 *
 * One step: mask -> biases -> the samplers of the chain in its order -> mirostat -> draw. Samplers that are off cost
 * nothing. Every instruction set gives the same token: select.h says how ties break, dist.h what the softmax is. A
 * sampler may be used by one thread at a time; different samplers share nothing but sequence breakers.
 *
 * What a draw changes beside the random stream (mirostat's mu, adaptive-p's average) changes when the token drawn last
 * is accepted; any other token leaves it as it is. */
#ifndef OE_SAMPLE_H
#define OE_SAMPLE_H

#include <stdint.h>

#include "sample/dry.h"
#include "sample/logit_kernels.h"
#include "sample/params.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OE_SAMPLE_MAX_VOCAB ((int32_t)1 << 24) /* the sum of that many weights (dist.h) fits into 64 bits */

typedef enum oe_sample_status {
    OE_SAMPLE_OK = 0,
    OE_SAMPLE_NO_MEMORY,
    OE_SAMPLE_BAD_LOGITS, /* NaN or +inf among the logits, allowed or not */
    OE_SAMPLE_NO_TOKEN,   /* every allowed logit is -inf after penalties and biases */
} oe_sample_status;

typedef struct oe_sampler oe_sampler;

/* bias_id[n_bias] distinct, in 0..n_vocab-1; bias[n_bias] finite or -inf. The arrays of `breakers`, which are of this
 * vocabulary, must outlive the sampler and its copies; NULL for none. NULL when there is no memory. */
oe_sampler *oe_sampler_create(const oe_sample_params *params, int32_t n_vocab, const oe_logit_kernels *kernels,
                              const int32_t *bias_id, const float *bias, int32_t n_bias,
                              const oe_dry_breakers *breakers);
oe_sampler *oe_sampler_copy(const oe_sampler *from); /* same seed, draws, history, state; NULL when no memory is left */
void oe_sampler_destroy(oe_sampler *sampler);
void oe_sampler_reset(oe_sampler *sampler); /* no draws made, no token accepted */

uint64_t oe_sampler_draws(const oe_sampler *sampler);
double oe_sampler_mirostat_mu(const oe_sampler *sampler);   /* in bits */
double oe_sampler_adaptive_mean(const oe_sampler *sampler); /* of the probabilities of recent tokens */

/* Adds tokens (0..n_vocab-1) to the history. With OE_SAMPLE_NO_MEMORY the history is as it was before the call. */
oe_sample_status oe_sampler_accept(oe_sampler *sampler, const int32_t *tokens, int64_t n);

/* So many of the best logits of a row are enough to sample it: of any row the token is the one that comes where all but
 * its n best logits, n at least this number, are -inf, if the n-th is larger than the next. 0 where each may matter.
 * A property of the parameters alone; masks and log-probabilities are not counted with. */
int32_t oe_sampler_best_needed(const oe_sampler *sampler);

typedef struct oe_sample_job {
    oe_sampler *sampler;
    const float *logits;  /* [n_vocab] only read */
    const uint32_t *mask; /* [oe_mask_words(n_vocab)] as in oe_logits: which tokens are allowed; NULL allows all */
    const int32_t *known; /* [n_known] in 0..n_vocab-1: all other logits are -inf, and are not looked for */
    int32_t n_known;      /* 0: any may be above */
    oe_sample_status status;
    int32_t token;        /* with OE_SAMPLE_OK */
    int32_t bad_first;    /* with OE_SAMPLE_BAD_LOGITS: index of the first, and how many */
    int32_t bad_count;
} oe_sample_job;

/* One step for each job, in order. A job that fails leaves its sampler as it was and does not touch the others.
 * A disallowed token is one whose logit is -inf, with this exception: NaN or +inf there is an error as elsewhere, for
 * it says that the model's numbers are wrong, and those of the allowed tokens come from the same product. */
void oe_sampler_run(oe_sample_job *jobs, int64_t n);

typedef struct oe_draft_job {
    oe_sample_job job;     /* logits: of the first row; what sampling the last row gave comes here */
    const int32_t *draft;  /* [n_draft] */
    int64_t n_draft;
    int64_t stride;        /* floats from a row to the next one; there are n_draft + 1 */
    int32_t *tokens;       /* [n_draft + 1] */
    int64_t n;             /* tokens that were drawn and accepted */
} oe_draft_job;

/* For each job: draws from its rows in order and accepts what it drew, up to the first that is not the draft's, or
 * the one behind the draft. A row that fails ends its job alone: job.status is then another than OE_SAMPLE_OK. */
void oe_sampler_verify(oe_draft_job *jobs, int64_t n);

/* What the next step of this job would draw from: tokens into id[n_vocab], their probabilities into p[n_vocab], in any
 * order; how many. Changes nothing. job: sampler, logits and mask in; status and bad_* out. */
int32_t oe_sampler_candidates(oe_sample_job *job, int32_t *id, double *p);

/* Natural log-probabilities of the softmax of the logits as they are: no mask, no penalty, no bias, no temperature.
 * The `top` largest go to top_id[top] / top_logprob[top], best first; *n_top says how many (tokens at -inf have none).
 * job: sampler, logits and token (whose log-probability becomes *logprob) in; status and bad_* out. */
void oe_sampler_logprobs(oe_sample_job *job, double *logprob, int32_t top, int32_t *top_id, double *top_logprob,
                         int32_t *n_top);

#ifdef __cplusplus
}
#endif

#endif
