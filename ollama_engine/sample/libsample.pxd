# csrc/sample/logit_kernels.h, params.h, dry.h and sample.h, in header order.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


cdef extern from "sample/logit_kernels.h" nogil:
    ctypedef enum oe_logit_kernel_set:
        OE_ROWS_SCALAR
        OE_LOGIT_KERNEL_SETS

    ctypedef struct oe_logit_kernels:
        pass

    const oe_logit_kernels *oe_logit_kernels_find(oe_logit_kernel_set set) noexcept
    int32_t oe_mask_words(int32_t n) noexcept
    const char *oe_logit_kernels_name(oe_logit_kernel_set set) noexcept


cdef extern from "sample/params.h" nogil:
    const int32_t OE_LINKS

    ctypedef struct oe_sample_params:
        int32_t chain[10]  # OE_LINKS
        int32_t n_chain
        int32_t min_keep
        double temperature
        double dynatemp_range
        double dynatemp_exponent
        double top_n_sigma
        double typical_p
        double top_p
        double min_p
        double xtc_probability
        double xtc_threshold
        double adaptive_target
        double adaptive_decay
        double mirostat_tau
        double mirostat_eta
        int32_t mirostat
        int32_t top_k
        double dry_multiplier
        double dry_base
        int32_t dry_allowed_length
        int32_t dry_penalty_last_n
        int32_t repeat_last_n
        float repeat_penalty
        float presence_penalty
        float frequency_penalty
        uint64_t seed


cdef extern from "sample/dry.h" nogil:
    ctypedef struct oe_dry_breakers:
        const uint32_t *single
        int32_t n_sequences
        const int32_t *first
        const int32_t *start
        const int32_t *rest


cdef extern from "sample/sample.h" nogil:
    const int32_t OE_SAMPLE_MAX_VOCAB

    ctypedef enum oe_sample_status:
        OE_SAMPLE_OK
        OE_SAMPLE_NO_MEMORY
        OE_SAMPLE_BAD_LOGITS
        OE_SAMPLE_NO_TOKEN

    ctypedef struct oe_sampler:
        pass

    oe_sampler *oe_sampler_create(const oe_sample_params *params, int32_t n_vocab, const oe_logit_kernels *kernels,
                                  const int32_t *bias_id, const float *bias, int32_t n_bias,
                                  const oe_dry_breakers *breakers) noexcept
    oe_sampler *oe_sampler_copy(const oe_sampler *source) noexcept
    void oe_sampler_destroy(oe_sampler *sampler) noexcept
    void oe_sampler_reset(oe_sampler *sampler) noexcept
    uint64_t oe_sampler_draws(const oe_sampler *sampler) noexcept
    double oe_sampler_mirostat_mu(const oe_sampler *sampler) noexcept
    int32_t oe_sampler_best_needed(const oe_sampler *sampler) noexcept
    double oe_sampler_adaptive_mean(const oe_sampler *sampler) noexcept
    oe_sample_status oe_sampler_accept(oe_sampler *sampler, const int32_t *tokens, int64_t n) noexcept

    ctypedef struct oe_sample_job:
        oe_sampler *sampler
        const float *logits
        const uint32_t *mask
        const int32_t *known
        int32_t n_known
        oe_sample_status status
        int32_t token
        int32_t bad_first
        int32_t bad_count

    void oe_sampler_run(oe_sample_job *jobs, int64_t n) noexcept

    ctypedef struct oe_draft_job:
        oe_sample_job job
        const int32_t *draft
        int64_t n_draft
        int64_t stride
        int32_t *tokens
        int64_t n

    void oe_sampler_verify(oe_draft_job *jobs, int64_t n) noexcept
    int32_t oe_sampler_candidates(oe_sample_job *job, int32_t *id, double *p) noexcept
    void oe_sampler_logprobs(oe_sample_job *job, double *logprob, int32_t top, int32_t *top_id, double *top_logprob,
                             int32_t *n_top) noexcept
