/* A sampler: parameters, random stream and token history of one sequence, and the working memory for one step.
 *
 * One step, in this order (Ollama's): mask -> penalties and biases -> top-k -> temperature -> softmax -> top-p -> min-p
 * -> draw. Every instruction set gives the same token: select.h says how ties break, dist.h what the softmax is. A
 * sampler may be used by one thread at a time; different samplers share nothing. */
#ifndef OE_SAMPLE_H
#define OE_SAMPLE_H

#include <stdint.h>

#include "sample/logit_kernels.h"

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

typedef struct oe_sample_params {
    double temperature;     /* >= 0; 0 is greedy */
    double top_p;           /* 0..1 */
    double min_p;           /* 0..1 */
    int32_t top_k;          /* 0 or >= n_vocab: off */
    int32_t repeat_last_n;  /* tokens that penalties look back on; 0 none, -1 all */
    float repeat_penalty;   /* > 0 */
    float presence_penalty;
    float frequency_penalty;
    uint64_t seed;
} oe_sample_params;

typedef struct oe_sampler oe_sampler;

/* bias_id[n_bias] distinct, in 0..n_vocab-1; bias[n_bias] finite or -inf. NULL when there is no memory. */
oe_sampler *oe_sampler_create(const oe_sample_params *params, int32_t n_vocab, const oe_logit_kernels *kernels,
                              const int32_t *bias_id, const float *bias, int32_t n_bias);
oe_sampler *oe_sampler_copy(const oe_sampler *from); /* same seed, draws and history; NULL when there is no memory */
void oe_sampler_destroy(oe_sampler *sampler);
void oe_sampler_reset(oe_sampler *sampler); /* no draws made, no token accepted */

uint64_t oe_sampler_draws(const oe_sampler *sampler);

/* Adds tokens (0..n_vocab-1) to the history. With OE_SAMPLE_NO_MEMORY the history is as it was before the call. */
oe_sample_status oe_sampler_accept(oe_sampler *sampler, const int32_t *tokens, int64_t n);

typedef struct oe_sample_job {
    oe_sampler *sampler;
    const float *logits;  /* [n_vocab] only read */
    const uint32_t *mask; /* [oe_mask_words(n_vocab)] as in oe_logits: which tokens are allowed; NULL allows all */
    oe_sample_status status;
    int32_t token;        /* with OE_SAMPLE_OK */
    int32_t bad_first;    /* with OE_SAMPLE_BAD_LOGITS: index of the first, and how many */
    int32_t bad_count;
} oe_sample_job;

/* One step for each job, in order. A job that fails leaves its sampler as it was and does not touch the others.
 * A disallowed token is one whose logit is -inf, with this exception: NaN or +inf there is an error as elsewhere, for
 * it says that the model's numbers are wrong, and those of the allowed tokens come from the same product. */
void oe_sampler_run(oe_sample_job *jobs, int64_t n);

/* Natural log-probabilities of the softmax of the logits as they are: no mask, no penalty, no bias, no temperature.
 * The `top` largest go to top_id[top] / top_logprob[top], best first; *n_top says how many (tokens at -inf have none).
 * job: sampler, logits and token (whose log-probability becomes *logprob) in; status and bad_* out. */
void oe_sampler_logprobs(oe_sample_job *job, double *logprob, int32_t top, int32_t *top_id, double *top_logprob,
                         int32_t *n_top);

#ifdef __cplusplus
}
#endif

#endif
