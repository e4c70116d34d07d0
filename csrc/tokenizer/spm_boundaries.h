/* Word boundaries that no merge crosses.
 *
 * Vocabularies that write a space as U+2581 merge over whole texts. A merge can cross the boundary before a space only
 * if some token contains the byte before the boundary followed by a space. At all other boundaries the text is split:
 * the result is the same, and the heap of the merge loop stays small. */
#ifndef OE_SPM_BOUNDARIES_H
#define OE_SPM_BOUNDARIES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t joins[256]; /* 1 for bytes after which some token has a space; the space's own last byte never counts */
} oe_spm_boundaries;

static inline int oe_is_space(const char *text, size_t size) {
    return size >= 3 && memcmp(text, "\xe2\x96\x81", 3) == 0;
}

/* Learns from the text of one token. */
static inline void oe_spm_boundaries_add(oe_spm_boundaries *boundaries, const char *text, size_t size) {
    for (size_t i = 1; i + 3 <= size; ++i) {
        if (oe_is_space(text + i, size - i) && !(i >= 3 && oe_is_space(text + i - 3, 3))) {
            boundaries->joins[(uint8_t)text[i - 1]] = 1;
        }
    }
}

/* Where the word that starts at `from` ends. */
static inline size_t oe_spm_boundaries_end(const oe_spm_boundaries *boundaries, const char *text, size_t size,
                                           size_t from) {
    for (size_t i = from; i < size; ++i) {
        const char *space = (const char *)memchr(text + i, '\xe2', size - i);
        if (!space) {
            break;
        }
        i = (size_t)(space - text);
        if (oe_is_space(space, size - i)) {
            if (i > from && !boundaries->joins[(uint8_t)text[i - 1]] && !(i >= from + 3 && oe_is_space(space - 3, 3))) {
                return i;
            }
            i += 2;
        }
    }
    return size;
}

#endif
