/* The merge loop that byte-pair encoding and SentencePiece share, and the rank table of the former.
 *
 * Symbols are spans of a text. While some adjacent pair can merge, the pair of the lowest rank merges, the leftmost
 * one among equals. A queue finds it, so n symbols cost O(n log n) whatever the text, and O(n) where a text repeats one
 * character: its pairs come in order.
 */
#ifndef OE_PAIR_MERGE_H
#define OE_PAIR_MERGE_H

#include "tokenizer/checkpoint.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t  prev, next;    /* neighbours still alive, -1 at the ends */
    uint32_t start, length; /* bytes of the text; length 0 once merged into the left neighbour */
    int32_t  id;            /* -1: text that no token has */
    uint32_t rank;          /* of its merge with the next symbol; OE_NO_MERGE where they do not merge */
    int32_t  merged;        /* what that makes */
} oe_symbol;

typedef struct {
    uint32_t rank;
    int32_t  id; /* of the merged symbol */
} oe_merge;

#define OE_NO_MERGE UINT32_MAX

/* Pairs that can merge: rank << 32 | left symbol. Lower keys merge first. */
typedef struct {
    uint64_t *keys;
    size_t    size, capacity;
} oe_keys;

/* A queue of keys, lowest first. Most of them come in order, or behind all that wait: they need no heap, which is slow
 * where it is larger than a CPU's cache. */
typedef struct {
    oe_keys run;   /* ascending; `at` is the next one */
    size_t  at;
    oe_keys heap;  /* not above the run's last key */
    oe_keys later; /* above the run's last key, in any order: the next run */
    oe_keys spare; /* for sorting */
} oe_key_queue;

/* Scratch memory of one encode call. Zero it before the first use, and set the checkpoint. */
typedef struct {
    oe_symbol    *symbols;
    size_t        symbols_size, symbols_capacity;
    oe_key_queue  queue;
    char         *text; /* for callers that need a translated copy */
    size_t        text_capacity;
    oe_checkpoint checkpoint;
} oe_scratch;

void oe_scratch_free(oe_scratch *scratch);
int  oe_scratch_reserve_text(oe_scratch *scratch, size_t size);

/* Appends a symbol to the chain. 0, or -1 when memory is short. */
int oe_scratch_add(oe_scratch *scratch, uint32_t start, uint32_t length, int32_t id);

/* Returns whether two neighbours merge, and into what. `model` and `text` are passed through. */
typedef int (*oe_merge_find)(const void *model, const char *text, const oe_symbol *left, const oe_symbol *right,
                             oe_merge *merge);

/* Merges all of scratch->symbols. Those with length > 0 are the result. 0; -1 when memory is short; OE_STOPPED. */
int oe_scratch_merge(oe_scratch *scratch, oe_merge_find find, const void *model, const char *text);

/* -- rank table: (left id, right id) -> merge ---------------------------------------------------------------------- */

typedef struct {
    uint64_t key; /* UINT64_MAX marks a free slot */
    oe_merge merge;
} oe_pair_slot;

typedef struct {
    oe_pair_slot *slots;
    uint32_t      mask;
} oe_pair_map;

/* Room for `count` pairs, which is all that may be put. 0, or -1 when memory is short. */
int  oe_pair_map_init(oe_pair_map *map, uint32_t count);
void oe_pair_map_free(oe_pair_map *map);

/* The first rank given to a pair stays. */
void oe_pair_map_put(oe_pair_map *map, int32_t left, int32_t right, oe_merge merge);

/* Prefetches the slot of a pair that is put later. */
void oe_pair_map_prefetch(const oe_pair_map *map, int32_t left, int32_t right);

/* An oe_merge_find whose model is an oe_pair_map. */
int oe_pair_map_find(const void *map, const char *text, const oe_symbol *left, const oe_symbol *right, oe_merge *merge);

#ifdef __cplusplus
}
#endif
#endif
