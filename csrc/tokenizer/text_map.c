#include "tokenizer/text_map.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    return x;
}

/* Eight bytes at a time: keys are mostly 1 to 12 bytes long. */
static uint64_t hash_bytes(const char *key, size_t length) {
    uint64_t hash = 0x9e3779b97f4a7c15ull ^ length;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, key, 8);
        hash = mix(hash ^ word) * 0x9fb21c651e98df25ull;
        key += 8;
        length -= 8;
    }
    uint64_t tail = 0;
    memcpy(&tail, key, length);
    return mix(mix(hash ^ tail) * 0x9fb21c651e98df25ull);
}

/* At most two thirds of the slots are in use. */
static uint32_t most_used(uint32_t count) {
    return (uint32_t)((uint64_t)count * 2 / 3);
}

static uint32_t slot_count(uint32_t expected) {
    uint32_t count = 16;
    while (most_used(count) < expected && count < 1u << 31) {
        count *= 2;
    }
    return count;
}

static oe_text_slot *new_slots(uint32_t count) {
    oe_text_slot *slots = malloc((size_t)count * sizeof *slots);
    if (slots) {
        memset(slots, 0xff, (size_t)count * sizeof *slots); /* id -1 everywhere */
    }
    return slots;
}

int oe_text_map_init(oe_text_map *map, uint32_t expected) {
    memset(map, 0, sizeof *map);
    uint32_t count = slot_count(expected);
    map->slots = new_slots(count);
    map->mask = count - 1;
    return map->slots ? 0 : -1;
}

void oe_text_map_free(oe_text_map *map) {
    free(map->slots);
    free(map->keys);
    memset(map, 0, sizeof *map);
}

/* The slot holding the key, or the free slot where it belongs. */
static oe_text_slot *probe(const oe_text_map *map, uint64_t hash, const char *key, size_t length) {
    uint32_t tag = (uint32_t)(hash >> 32);
    for (uint32_t i = (uint32_t)hash & map->mask;; i = (i + 1) & map->mask) {
        oe_text_slot *slot = &map->slots[i];
        if (slot->id < 0) {
            return slot;
        }
        if (slot->tag == tag && slot->length == length && memcmp(map->keys + slot->offset, key, length) == 0) {
            return slot;
        }
    }
}

static int grow_slots(oe_text_map *map) {
    uint32_t count = (map->mask + 1) * 2;
    oe_text_slot *old = map->slots;
    uint32_t old_count = map->mask + 1;
    oe_text_slot *slots = count ? new_slots(count) : NULL;
    if (!slots) {
        return -1;
    }
    map->slots = slots;
    map->mask = count - 1;
    for (uint32_t i = 0; i < old_count; ++i) {
        if (old[i].id >= 0) {
            const char *key = map->keys + old[i].offset;
            *probe(map, hash_bytes(key, old[i].length), key, old[i].length) = old[i];
        }
    }
    free(old);
    return 0;
}

static int reserve_keys(oe_text_map *map, size_t more) {
    if (map->keys_size + more <= map->keys_capacity) {
        return 0;
    }
    size_t capacity = map->keys_capacity * 2 + more + 4096;
    if (capacity > UINT32_MAX) {
        return -1; /* offsets are 32 bits: no vocabulary has 4 GiB of text */
    }
    char *keys = realloc(map->keys, capacity);
    if (!keys) {
        return -1;
    }
    map->keys = keys;
    map->keys_capacity = capacity;
    return 0;
}

int oe_text_map_put(oe_text_map *map, const char *key, uint32_t length, int32_t id) {
    if (map->used >= most_used(map->mask + 1) && grow_slots(map) < 0) {
        return -1;
    }
    uint64_t hash = hash_bytes(key, length);
    oe_text_slot *slot = probe(map, hash, key, length);
    if (slot->id < 0) {
        if (reserve_keys(map, length) < 0) {
            return -1;
        }
        memcpy(map->keys + map->keys_size, key, length);
        slot->tag = (uint32_t)(hash >> 32);
        slot->length = length;
        slot->offset = (uint32_t)map->keys_size;
        map->keys_size += length;
        map->used++;
    }
    slot->id = id;
    return 0;
}

void oe_text_map_prefetch(const oe_text_map *map, const char *key, size_t length) {
    __builtin_prefetch(&map->slots[(uint32_t)hash_bytes(key, length) & map->mask], 1);
}

int32_t oe_text_map_find(const oe_text_map *map, const char *key, size_t length) {
    return probe(map, hash_bytes(key, length), key, length)->id;
}
