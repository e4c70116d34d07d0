/* What a sampler is asked for. Zeroed, all but temperature is off. */
#ifndef OE_SAMPLE_PARAMS_H
#define OE_SAMPLE_PARAMS_H

#include <stdint.h>

/* Samplers that a chain may name, each once, in any order. */
typedef enum oe_link {
    OE_LINK_PENALTIES,
    OE_LINK_DRY,
    OE_LINK_TOP_N_SIGMA,
    OE_LINK_TOP_K,
    OE_LINK_TYP_P,
    OE_LINK_TOP_P,
    OE_LINK_MIN_P,
    OE_LINK_XTC,
    OE_LINK_TEMPERATURE,
    OE_LINK_ADAPTIVE_P, /* chooses the token, so that it comes last */
    OE_LINKS,
} oe_link;

typedef struct oe_sample_params {
    int32_t chain[OE_LINKS]; /* [n_chain] oe_link */
    int32_t n_chain;
    int32_t min_keep; /* what top-p, min-p, typical and XTC leave at least, where there are so many */
    double temperature;        /* >= 0; 0 is greedy */
    double dynatemp_range;     /* >= 0; 0 is off */
    double dynatemp_exponent;  /* >= 0 */
    double top_n_sigma;        /* > 0; <= 0 is off */
    double typical_p;          /* 0..1; 1 is off */
    double top_p;              /* 0..1 */
    double min_p;              /* 0..1 */
    double xtc_probability;    /* 0..1; 0 is off */
    double xtc_threshold;      /* 0..1; above 0.5 it is off, as no two tokens reach it */
    double adaptive_target;    /* 0..1; below 0 is off */
    double adaptive_decay;     /* 0..0.99 */
    double mirostat_tau;       /* >= 0 */
    double mirostat_eta;       /* >= 0 */
    int32_t mirostat;          /* 1, 2, or 0: off. Of the chain, penalties, DRY and temperature take part then */
    int32_t top_k;             /* 0 or >= n_vocab: off */
    double dry_multiplier;     /* 0 is off */
    double dry_base;           /* >= 1 */
    int32_t dry_allowed_length; /* >= 0 */
    int32_t dry_penalty_last_n; /* tokens that DRY looks back on; 0 none, -1 all */
    int32_t repeat_last_n;     /* tokens that penalties look back on; 0 none, -1 all */
    float repeat_penalty;      /* > 0 */
    float presence_penalty;
    float frequency_penalty;
    uint64_t seed;
} oe_sample_params;

#endif
