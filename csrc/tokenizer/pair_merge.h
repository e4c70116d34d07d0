/* The merge loop that byte-pair encoding and SentencePiece share, and the rank table of the former.
 *
 * Symbols are spans of a text. While some adjacent pair can merge, the pair of the lowest rank merges, the leftmost
 * one among equals. A heap finds it, so n symbols cost O(n log n) whatever the text.
 */
#ifndef OE_PAIR_MERGE_H
#define OE_PAIR_MERGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t  prev, next;    /* neighbours still alive, -1 at the ends */
    uint32_t start, length; /* bytes of the text; length 0 once merged into the left neighbour */
    int32_t  id;            /* -1: text that no token has */
} oe_symbol;

typedef struct {
    uint32_t rank;
    int32_t  id; /* of the merged symbol */
} oe_merge;

typedef struct {
    uint32_t rank;
    int32_t  left, right, id;
    uint32_t length; /* of both together; differs from theirs once the entry is stale */
} oe_candidate;

/* Scratch memory of one encode call. Zero it before the first use. */
typedef struct {
    oe_symbol    *symbols;
    size_t        symbols_size, symbols_capacity;
    oe_candidate *heap;
    size_t        heap_size, heap_capacity;
    char         *text; /* for callers that need a translated copy */
    size_t        text_capacity;
} oe_scratch;

void oe_scratch_free(oe_scratch *scratch);
int  oe_scratch_reserve_text(oe_scratch *scratch, size_t size);

/* Appends a symbol to the chain. 0, or -1 when memory is short. */
int oe_scratch_add(oe_scratch *scratch, uint32_t start, uint32_t length, int32_t id);

/* Returns whether two neighbours merge, and into what. `model` and `text` are passed through. */
typedef int (*oe_merge_find)(const void *model, const char *text, const oe_symbol *left, const oe_symbol *right,
                             oe_merge *merge);

/* Merges all of scratch->symbols. Those with length > 0 are the result. 0, or -1 when memory is short. */
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
