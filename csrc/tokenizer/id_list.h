/* A growing list of token ids, and the one UTF-8 rule that the tokenizers share. */
#ifndef OE_ID_LIST_H
#define OE_ID_LIST_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int32_t *ids;
    size_t   size, capacity;
    size_t   dropped;      /* bytes of the text that no id stands for */
    uint8_t  dropped_byte; /* the last of them */
} oe_id_list;

/* 0, or -1 when memory is short. */
static inline int oe_id_list_add(oe_id_list *list, int32_t id) {
    if (list->size == list->capacity) {
        size_t capacity = list->capacity * 2 + 64;
        int32_t *ids = (int32_t *)realloc(list->ids, capacity * sizeof *ids);
        if (!ids) {
            return -1;
        }
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->size++] = id;
    return 0;
}

/* Bytes of the character at `text`; 1 for a byte that starts no complete character. */
static inline uint32_t oe_utf8_length(const char *text, size_t size) {
    uint8_t lead = (uint8_t)text[0];
    uint32_t length = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 1;
    if (length > size) {
        return 1;
    }
    for (uint32_t i = 1; i < length; ++i) {
        if (((uint8_t)text[i] & 0xc0) != 0x80) {
            return 1;
        }
    }
    return length;
}

#endif
