#include "tokenizer/pair_merge.h"

#include <stdlib.h>
#include <string.h>

void oe_scratch_free(oe_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch->text);
    memset(scratch, 0, sizeof *scratch);
}

int oe_scratch_reserve_text(oe_scratch *scratch, size_t size) {
    if (size <= scratch->text_capacity) {
        return 0;
    }
    char *text = realloc(scratch->text, size * 2);
    if (!text) {
        return -1;
    }
    scratch->text = text;
    scratch->text_capacity = size * 2;
    return 0;
}

int oe_scratch_add(oe_scratch *scratch, uint32_t start, uint32_t length, int32_t id) {
    size_t n = scratch->symbols_size;
    if (n == scratch->symbols_capacity) {
        size_t capacity = n * 2 + 64;
        oe_symbol *symbols = capacity > INT32_MAX ? NULL : realloc(scratch->symbols, capacity * sizeof *symbols);
        if (!symbols) {
            return -1;
        }
        scratch->symbols = symbols;
        scratch->symbols_capacity = capacity;
    }
    if (n > 0) {
        scratch->symbols[n - 1].next = (int32_t)n;
    }
    scratch->symbols[n] = (oe_symbol){(int32_t)n - 1, -1, start, length, id};
    scratch->symbols_size = n + 1;
    return 0;
}

/* -- binary heap of candidates, lowest (rank, left) first ---------------------------------------------------------- */

static int before(const oe_candidate *a, const oe_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static int heap_push(oe_scratch *scratch, oe_candidate candidate) {
    if (scratch->heap_size == scratch->heap_capacity) {
        size_t capacity = scratch->heap_capacity * 2 + 64;
        oe_candidate *heap = realloc(scratch->heap, capacity * sizeof *heap);
        if (!heap) {
            return -1;
        }
        scratch->heap = heap;
        scratch->heap_capacity = capacity;
    }
    size_t i = scratch->heap_size++;
    for (; i > 0; i = (i - 1) / 2) {
        const oe_candidate *parent = &scratch->heap[(i - 1) / 2];
        if (!before(&candidate, parent)) {
            break;
        }
        scratch->heap[i] = *parent;
    }
    scratch->heap[i] = candidate;
    return 0;
}

static oe_candidate heap_pop(oe_scratch *scratch) {
    oe_candidate *heap = scratch->heap;
    oe_candidate top = heap[0];
    oe_candidate last = heap[--scratch->heap_size];
    size_t n = scratch->heap_size;
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!before(&heap[child], &last)) {
            break;
        }
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

/* -- the merge loop ------------------------------------------------------------------------------------------------ */

static int add_candidate(oe_scratch *scratch, oe_merge_find find, const void *model, const char *text, int32_t left,
                         int32_t right) {
    oe_merge merge;
    if (left < 0 || right < 0) {
        return 0;
    }
    const oe_symbol *l = &scratch->symbols[left];
    const oe_symbol *r = &scratch->symbols[right];
    if (!find(model, text, l, r, &merge)) {
        return 0;
    }
    return heap_push(scratch, (oe_candidate){merge.rank, left, right, merge.id, l->length + r->length});
}

int oe_scratch_merge(oe_scratch *scratch, oe_merge_find find, const void *model, const char *text) {
    oe_symbol *symbols = scratch->symbols;
    scratch->heap_size = 0;
    for (size_t i = 1; i < scratch->symbols_size; ++i) {
        if (add_candidate(scratch, find, model, text, (int32_t)i - 1, (int32_t)i) < 0) {
            return -1;
        }
    }
    while (scratch->heap_size > 0) {
        oe_candidate top = heap_pop(scratch);
        oe_symbol *left = &symbols[top.left];
        oe_symbol *right = &symbols[top.right];
        /* Symbols only ever grow to the right, so equal lengths mean that both are as they were. */
        if (left->length == 0 || right->length == 0 || left->length + right->length != top.length) {
            continue;
        }
        left->length = top.length;
        left->id = top.id;
        left->next = right->next;
        right->length = 0;
        if (left->next >= 0) {
            symbols[left->next].prev = top.left;
        }
        if (add_candidate(scratch, find, model, text, left->prev, top.left) < 0 ||
            add_candidate(scratch, find, model, text, top.left, left->next) < 0) {
            return -1;
        }
    }
    return 0;
}

/* -- rank table ---------------------------------------------------------------------------------------------------- */

static uint32_t hash_pair(uint64_t key) {
    key *= 0x9e3779b97f4a7c15ull;
    key ^= key >> 29;
    key *= 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(key >> 32);
}

int oe_pair_map_init(oe_pair_map *map, uint32_t count) {
    uint64_t slots = 16;
    while (slots / 2 < count) {
        slots *= 2;
    }
    map->slots = malloc(slots * sizeof *map->slots);
    if (!map->slots) {
        return -1;
    }
    memset(map->slots, 0xff, slots * sizeof *map->slots); /* key UINT64_MAX everywhere */
    map->mask = (uint32_t)(slots - 1);
    return 0;
}

void oe_pair_map_free(oe_pair_map *map) {
    free(map->slots);
    map->slots = NULL;
}

static oe_pair_slot *probe(const oe_pair_map *map, uint64_t key) {
    for (uint32_t i = hash_pair(key) & map->mask;; i = (i + 1) & map->mask) {
        oe_pair_slot *slot = &map->slots[i];
        if (slot->key == key || slot->key == UINT64_MAX) {
            return slot;
        }
    }
}

static uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void oe_pair_map_prefetch(const oe_pair_map *map, int32_t left, int32_t right) {
    __builtin_prefetch(&map->slots[hash_pair(pair_key(left, right)) & map->mask], 1);
}

void oe_pair_map_put(oe_pair_map *map, int32_t left, int32_t right, oe_merge merge) {
    uint64_t key = pair_key(left, right);
    oe_pair_slot *slot = probe(map, key);
    if (slot->key == UINT64_MAX) {
        slot->key = key;
        slot->merge = merge;
    }
}

int oe_pair_map_find(const void *map, const char *text, const oe_symbol *left, const oe_symbol *right,
                     oe_merge *merge) {
    (void)text;
    if (left->id < 0 || right->id < 0) {
        return 0;
    }
    const oe_pair_slot *slot = probe(map, pair_key(left->id, right->id));
    *merge = slot->merge;
    return slot->key != UINT64_MAX;
}
