#include "tokenizer/charsmap.h"

#include "tokenizer/id_list.h"

#include <string.h>

static size_t children_of(size_t at, uint32_t unit) {
    return at ^ ((size_t)(unit >> 10) << ((unit & 0x200) >> 6));
}

/* Length of the longest key at `text`, 0 for none. */
static size_t longest(const oe_charsmap *map, const char *text, size_t size, uint32_t *value) {
    size_t found = 0;
    size_t at = children_of(0, map->units[0]);
    for (size_t i = 0; i < size; ++i) {
        uint8_t byte = (uint8_t)text[i];
        at ^= byte;
        if (at >= map->n_units || (map->units[at] & 0x800000ffu) != byte) {
            break;
        }
        uint32_t unit = map->units[at];
        at = children_of(at, unit);
        if (unit & 0x100) {
            if (at >= map->n_units) {
                break;
            }
            *value = map->units[at] & 0x7fffffffu;
            found = i + 1;
        }
    }
    return found;
}

static int append(oe_buffer *out, const char *text, size_t size) {
    if (size == 0) {
        return 0; /* what a key is replaced by may be empty, and there may be no memory yet */
    }
    if (out->size + size > out->capacity) {
        size_t capacity = (out->size + size) * 2;
        char *data = realloc(out->data, capacity);
        if (!data) {
            return -1;
        }
        out->data = data;
        out->capacity = capacity;
    }
    memcpy(out->data + out->size, text, size);
    out->size += size;
    return 0;
}

int oe_charsmap_apply(const oe_charsmap *map, const char *text, size_t size, oe_buffer *out) {
    int status = 0;
    for (size_t start = 0; start < size && status == 0;) {
        uint32_t value = 0;
        size_t length = longest(map, text + start, size - start, &value);
        if (length == 0) {
            length = oe_utf8_length(text + start, size - start);
            status = append(out, text + start, length);
        } else if (value >= map->n_texts) {
            return 1;
        } else {
            status = append(out, map->texts + value, strlen(map->texts + value));
        }
        start += length;
    }
    return status;
}
