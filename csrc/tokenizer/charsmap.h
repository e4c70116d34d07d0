/* SentencePiece's table of replacements: a trie as a double array, in the layout of darts-clone, and texts.
 *
 * The table is not trusted: a step out of the array ends the search, a text outside of the texts is an error.
 */
#ifndef OE_CHARSMAP_H
#define OE_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const uint32_t *units;
    size_t          n_units;
    const char     *texts; /* each ended by a zero byte, and so is the last one */
    size_t          n_texts;
} oe_charsmap;

typedef struct {
    char  *data;
    size_t size, capacity;
} oe_buffer;

/* Appends the text with the longest key at each place replaced, from left to right.
 * Returns 0; -1 when memory is short; or 1 when a key stands for no text. */
int oe_charsmap_apply(const oe_charsmap *map, const char *text, size_t size, oe_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
