/* The largest entries of a float row, found without sorting it. Ties go to the lower token id.
 *
 * Every function takes a row through `oe_row`: the logits as the model left them, and an overlay that replaces the
 * few entries which penalties and biases touched. The logits themselves are only read. */
#ifndef OE_SELECT_H
#define OE_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/float_bits.h"
#include "sample/logit_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_row {
    oe_logits logits;  /* no NaN, no +inf: their kernels' `scan` checks that, and fills block_max */
    int32_t n_allowed; /* as the scan counted them */
    /* -- overlay -- */
    int32_t n_touched;
    const int32_t *touched; /* [n_touched] distinct tokens */
    const float *value;     /* [n_touched] what stands in place of x[touched[i]]; -inf where the mask disallows it */
    const int32_t *slot;    /* [n] not 0 where a token is touched; NULL when n_touched is 0 */
} oe_row;

static inline bool oe_row_is_touched(const oe_row *row, int32_t i) { return row->slot && row->slot[i]; }

/* Keys sort as (logit ascending, id descending): the largest key is the largest logit with the lowest id. */
static inline uint64_t oe_key_make(float x, int32_t id) {
    uint32_t bits = oe_float_bits(x + 0.0f); /* -0.0 and 0.0 tie */
    bits ^= (bits >> 31) ? 0xffffffffu : 0x80000000u;
    return ((uint64_t)bits << 32) | (uint32_t)~id;
}

static inline int32_t oe_key_id(uint64_t key) { return (int32_t)~(uint32_t)key; }

static inline float oe_key_logit(uint64_t key) {
    uint32_t bits = (uint32_t)(key >> 32);
    bits ^= (bits >> 31) ? 0x80000000u : 0xffffffffu;
    return oe_float_of_bits(bits);
}

/* After a scan failed: the first NaN or +inf and how many there are. */
void oe_row_find_bad(const float *x, int32_t n, int32_t *first, int32_t *count);

/* The largest of x[n], or -inf. */
float oe_largest(const float *x, int32_t n);

/* The first of the largest allowed entries above -inf, or -1. Needs a row without touched entries. */
int32_t oe_row_best(const oe_row *row);

/* Orders distinct keys so that the k largest come first and keys[k - 1] is the smallest of those; 1 <= k <= n. */
void oe_keys_select(uint64_t *keys, size_t n, size_t k);

/* Room that oe_row_top needs in `keys`. */
static inline size_t oe_top_capacity(int32_t k) { return 2 * (size_t)k + 2 * OE_BLOCK; }

/* Puts the k largest allowed entries above -inf into keys (any order); returns how many, at most k. k >= 1. */
int32_t oe_row_top(const oe_logit_kernels *kernels, const oe_row *row, int32_t k, uint64_t *keys);

#ifdef __cplusplus
}
#endif

#endif
