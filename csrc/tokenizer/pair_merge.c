#include "tokenizer/pair_merge.h"

#include <stdlib.h>
#include <string.h>

void oe_scratch_free(oe_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->queue.run.keys);
    free(scratch->queue.heap.keys);
    free(scratch->queue.later.keys);
    free(scratch->queue.spare.keys);
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
    scratch->symbols[n] = (oe_symbol){(int32_t)n - 1, -1, start, length, id, OE_NO_MERGE, -1};
    scratch->symbols_size = n + 1;
    return 0;
}

/* -- queue of keys ------------------------------------------------------------------------------------------------- */

enum { FEW = 32, DIGIT = 11, BINS = 1 << DIGIT };

static int reserve(oe_keys *keys, size_t size) {
    if (size <= keys->capacity) {
        return 0;
    }
    size_t capacity = size * 2 + 64;
    uint64_t *grown = realloc(keys->keys, capacity * sizeof *grown);
    if (!grown) {
        return -1;
    }
    keys->keys = grown;
    keys->capacity = capacity;
    return 0;
}

static int append(oe_keys *keys, uint64_t key) {
    if (keys->size == keys->capacity && reserve(keys, keys->size + 1) < 0) {
        return -1;
    }
    keys->keys[keys->size++] = key;
    return 0;
}

static int heap_push(oe_keys *heap, uint64_t key) {
    if (append(heap, key) < 0) {
        return -1;
    }
    uint64_t *keys = heap->keys;
    size_t i = heap->size - 1;
    for (; i > 0 && key < keys[(i - 1) / 2]; i = (i - 1) / 2) {
        keys[i] = keys[(i - 1) / 2];
    }
    keys[i] = key;
    return 0;
}

static uint64_t heap_pop(oe_keys *heap) {
    uint64_t *keys = heap->keys;
    uint64_t top = keys[0];
    uint64_t last = keys[--heap->size];
    size_t n = heap->size;
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && keys[child + 1] < keys[child]) {
            child++;
        }
        if (keys[child] >= last) {
            break;
        }
        keys[i] = keys[child];
    }
    keys[i] = last;
    return top;
}

static void swap(oe_keys *a, oe_keys *b) {
    oe_keys kept = *a;
    *a = *b;
    *b = kept;
}

/* By one digit of the keys, from `keys` to `spare`, which are swapped then. Keys that share the digit stay. */
static void sort_by_digit(oe_keys *keys, oe_keys *spare, int shift) {
    size_t ends[BINS] = {0};
    for (size_t i = 0; i < keys->size; ++i) {
        ends[keys->keys[i] >> shift & (BINS - 1)]++;
    }
    if (ends[keys->keys[0] >> shift & (BINS - 1)] == keys->size) {
        return;
    }
    size_t place = 0;
    for (int bin = 0; bin < BINS; ++bin) {
        size_t count = ends[bin];
        ends[bin] = place;
        place += count;
    }
    for (size_t i = 0; i < keys->size; ++i) {
        spare->keys[ends[keys->keys[i] >> shift & (BINS - 1)]++] = keys->keys[i];
    }
    spare->size = keys->size;
    swap(keys, spare);
}

static int is_ascending(const oe_keys *keys) {
    for (size_t i = 1; i < keys->size; ++i) {
        if (keys->keys[i] < keys->keys[i - 1]) {
            return 0;
        }
    }
    return 1;
}

static int sort(oe_keys *keys, oe_keys *spare) {
    if (keys->size <= FEW) {
        for (size_t i = 1; i < keys->size; ++i) {
            uint64_t key = keys->keys[i];
            size_t at = i;
            for (; at > 0 && key < keys->keys[at - 1]; --at) {
                keys->keys[at] = keys->keys[at - 1];
            }
            keys->keys[at] = key;
        }
        return 0;
    }
    if (is_ascending(keys)) {
        return 0;
    }
    if (reserve(spare, keys->size) < 0) {
        return -1;
    }
    for (int shift = 0; shift < 64; shift += DIGIT) {
        sort_by_digit(keys, spare, shift);
    }
    return 0;
}

static int queue_push(oe_key_queue *queue, uint64_t key) {
    int is_later = queue->run.size == 0 || key > queue->run.keys[queue->run.size - 1];
    return is_later ? append(&queue->later, key) : heap_push(&queue->heap, key);
}

/* 1 and the lowest key; 0 where there is none; -1 when memory is short. */
static int queue_pop(oe_key_queue *queue, uint64_t *key) {
    if (queue->at == queue->run.size && queue->heap.size == 0) {
        swap(&queue->run, &queue->later);
        queue->later.size = 0;
        queue->at = 0;
        if (queue->run.size == 0) {
            return 0;
        }
        if (sort(&queue->run, &queue->spare) < 0) {
            return -1;
        }
    }
    int is_in_run = queue->at < queue->run.size &&
                    (queue->heap.size == 0 || queue->run.keys[queue->at] <= queue->heap.keys[0]);
    *key = is_in_run ? queue->run.keys[queue->at++] : heap_pop(&queue->heap);
    return 1;
}

static void queue_clear(oe_key_queue *queue) {
    queue->run.size = queue->at = queue->heap.size = queue->later.size = 0;
}

/* -- the merge loop ------------------------------------------------------------------------------------------------ */

/* Notes whether a symbol and its right neighbour merge. */
static int find_pair(oe_scratch *scratch, oe_merge_find find, const void *model, const char *text, int32_t left) {
    if (left < 0) {
        return 0;
    }
    oe_symbol *symbol = &scratch->symbols[left];
    oe_merge merge;
    if (symbol->next < 0 || !find(model, text, symbol, &scratch->symbols[symbol->next], &merge)) {
        symbol->rank = OE_NO_MERGE;
        return 0;
    }
    symbol->rank = merge.rank;
    symbol->merged = merge.id;
    return queue_push(&scratch->queue, (uint64_t)merge.rank << 32 | (uint32_t)left);
}

static void merge_pair(oe_symbol *symbols, int32_t at) {
    oe_symbol *left = &symbols[at];
    oe_symbol *right = &symbols[left->next];
    left->length += right->length;
    left->id = left->merged;
    left->next = right->next;
    right->length = 0;
    if (left->next >= 0) {
        symbols[left->next].prev = at;
    }
}

int oe_scratch_merge(oe_scratch *scratch, oe_merge_find find, const void *model, const char *text) {
    oe_symbol *symbols = scratch->symbols;
    uint64_t key;
    int status;
    queue_clear(&scratch->queue);
    for (size_t i = 0; i + 1 < scratch->symbols_size; ++i) {
        if (find_pair(scratch, find, model, text, (int32_t)i) < 0) {
            return -1;
        }
        if ((status = oe_checkpoint_pass(&scratch->checkpoint)) < 0) {
            return status;
        }
    }
    while ((status = queue_pop(&scratch->queue, &key)) > 0) {
        int32_t at = (int32_t)(uint32_t)key;
        /* A pair that has changed since it was noted has another rank, or is noted again. */
        if (symbols[at].length == 0 || symbols[at].rank != key >> 32) {
            continue;
        }
        merge_pair(symbols, at);
        if (find_pair(scratch, find, model, text, symbols[at].prev) < 0 ||
            find_pair(scratch, find, model, text, at) < 0) {
            return -1;
        }
        if ((status = oe_checkpoint_pass(&scratch->checkpoint)) < 0) {
            return status;
        }
    }
    return status;
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
