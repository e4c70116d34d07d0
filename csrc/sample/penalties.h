/* What a sampler remembers of tokens: how often each stands in the history that penalties look back on, and its bias.
 *
 * Tokens with a bias or in the history are *touched*: the biased ones come first, for good, then those in the history,
 * in no order. Everything costs what is touched, not the vocabulary. */
#ifndef OE_HISTORY_H
#define OE_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_history {
    int32_t n_vocab;
    int32_t window;  /* how many tokens the history holds; -1 all */
    int32_t n_bias;
    /* -- touched tokens -- */
    int32_t *slot; /* [n_vocab] 1 + index below, 0 where untouched; NULL when nothing can be touched */
    int32_t *touched, *count;
    float *bias;
    float *value; /* the caller's: room for one number of each */
    int32_t n_touched, touched_capacity;
    /* -- the last n_recent accepted tokens, oldest at recent[recent_start]; unused without a window -- */
    int32_t *recent; /* [recent_capacity], a ring once it holds `window` */
    int32_t recent_capacity, n_recent, recent_start;
} oe_history;

/* bias_id[n_bias] distinct, in 0..n_vocab-1. False when there is no memory; to be freed whatever is answered. */
bool oe_history_init(oe_history *history, int32_t n_vocab, int32_t window, const int32_t *bias_id, const float *bias,
                     int32_t n_bias);

/* The tokens of `from` into a new history with the same biases. False when there is no memory. */
bool oe_history_follow(oe_history *history, const oe_history *from);

void oe_history_free(oe_history *history);
void oe_history_reset(oe_history *history); /* no token accepted; the biases stay */

/* Adds tokens (0..n_vocab-1). False when there is no memory: then nothing has changed. */
bool oe_history_accept(oe_history *history, const int32_t *tokens, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
