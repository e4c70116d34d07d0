/* DRY ("don't repeat yourself"): which tokens would continue a repetition, and how long it is by now.
 * Source: P. E. Weidmann (p-e-w), text-generation-webui, pull request 5677, 2024.
 *
 * A repetition is the longest suffix of the history that stands elsewhere in it too; the token that followed it there
 * would continue it. A sequence breaker in the suffix ends what counts of it. */
#ifndef OE_DRY_H
#define OE_DRY_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sequence breakers of one vocabulary, whose arrays many samplers share: their owner keeps them alive. */
typedef struct oe_dry_breakers {
    const uint32_t *single;    /* [oe_mask_words(n_vocab)] tokens that break by themselves */
    int32_t n_sequences;       /* breakers of several tokens */
    const int32_t *first;      /* [n_sequences] their first tokens, ascending */
    const int32_t *start;      /* [n_sequences + 1] the others are rest[start[i]] .. rest[start[i + 1] - 1] */
    const int32_t *rest;
} oe_dry_breakers;

typedef struct oe_dry {
    int32_t window;  /* how many tokens to look back on; -1 all */
    int32_t allowed; /* repetitions shorter than this are not looked at */
    oe_dry_breakers breakers; /* zeroed for none */
    int32_t *history; /* the last n_history accepted tokens, oldest first; twice the window, so that few are moved */
    int64_t n_history, capacity;
    int32_t *length; /* [length_capacity] working memory of a scan, and what it found */
    int64_t length_capacity;
} oe_dry;

typedef struct oe_dry_hit {
    int32_t token, length;
} oe_dry_hit;

void oe_dry_free(oe_dry *dry);

/* Adds tokens. False when there is no memory: then nothing has changed. */
bool oe_dry_accept(oe_dry *dry, const int32_t *tokens, int64_t n);

/* The history of `from` into an empty one. False when there is no memory. */
bool oe_dry_follow(oe_dry *dry, const oe_dry *from);

/* Finds how far the history's suffix repeats at each place, in time linear in the window; n places, or -1 without
 * memory. oe_dry_hit_at(dry, i) for 0 <= i < n then says which token would continue place i's repetition, and how long
 * that is; a length of 0 is no repetition, or one shorter than allowed. */
int64_t oe_dry_scan(oe_dry *dry);
oe_dry_hit oe_dry_hit_at(const oe_dry *dry, int64_t i);

bool oe_dry_is_breaker(const oe_dry *dry, int32_t token); /* by itself */

#ifdef __cplusplus
}
#endif

#endif
