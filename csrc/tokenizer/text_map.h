/* Byte strings to token ids. Owns a copy of every key; a key put twice keeps the later id. */
#ifndef OE_TEXT_MAP_H
#define OE_TEXT_MAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t tag;    /* upper half of the key's hash */
    int32_t  id;     /* -1 marks a free slot */
    uint32_t length;
    uint32_t offset; /* of the key in `keys` */
} oe_text_slot;

typedef struct {
    oe_text_slot *slots;
    uint32_t      mask; /* number of slots - 1, a power of two less one */
    uint32_t      used;
    char         *keys;
    size_t        keys_size;
    size_t        keys_capacity;
} oe_text_map;

/* Functions that allocate return 0, or -1 when memory is short; the map is then still valid. */
int  oe_text_map_init(oe_text_map *map, uint32_t expected);
void oe_text_map_free(oe_text_map *map);
int  oe_text_map_put(oe_text_map *map, const char *key, uint32_t length, int32_t id);

/* Prefetches the slot of a key that is looked up later. */
void oe_text_map_prefetch(const oe_text_map *map, const char *key, size_t length);

/* The id, or -1 when the key is absent. */
int32_t oe_text_map_find(const oe_text_map *map, const char *key, size_t length);

#ifdef __cplusplus
}
#endif
#endif
