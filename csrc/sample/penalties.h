/* What a sampler remembers of tokens: how often each stands in the history that penalties look back on, and its bias.
 *
 * Tokens with a bias or in the history are *touched*: the biased ones come first, for good, then those in the history,
 * in no order. Everything costs what is touched, not the vocabulary. */
#ifndef OE_PENALTIES_H
#define OE_PENALTIES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_penalties {
    int32_t n_vocab;
    int32_t window;  /* how many tokens the history holds; -1 all */
    int32_t n_bias;
    /* -- touched tokens -- */
    int32_t *slot; /* [n_vocab] 1 + index below, 0 where untouched; NULL when nothing can be touched */
    int32_t *touched, *count;
    int32_t *repeat; /* how long a repetition the token would continue, see dry.h; 0 but during a step */
    float *bias;
    float *value; /* room for a number of each, which the caller writes */
    int32_t n_touched, touched_capacity;
    bool repeats;        /* whether any token has a `repeat`; the last n_passing are touched for that alone */
    int32_t n_passing;
    /* -- the last n_recent accepted tokens, oldest at recent[recent_start]; unused without a window -- */
    int32_t *recent; /* [recent_capacity], a ring once it holds `window` */
    int32_t recent_capacity, n_recent, recent_start;
} oe_penalties;

/* bias_id[n_bias] distinct, in 0..n_vocab-1. False when there is no memory; free it in either case. */
bool oe_penalties_init(oe_penalties *penalties, int32_t n_vocab, int32_t window, const int32_t *bias_id,
                       const float *bias, int32_t n_bias);

/* The accepted tokens of `from` into new penalties with the same biases. False when there is no memory. */
bool oe_penalties_follow(oe_penalties *penalties, const oe_penalties *from);

void oe_penalties_free(oe_penalties *penalties);
void oe_penalties_reset(oe_penalties *penalties); /* no token accepted; the biases stay */

/* The token would continue a repetition so long. Touches it until oe_penalties_end_step. False without memory. */
bool oe_penalties_repeats(oe_penalties *penalties, int32_t token, int32_t length);
void oe_penalties_end_step(oe_penalties *penalties);

/* Adds tokens (0..n_vocab-1). False when there is no memory: then nothing has changed. */
bool oe_penalties_accept(oe_penalties *penalties, const int32_t *tokens, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
