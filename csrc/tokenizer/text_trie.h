/* Finds the longest of many texts at each position of a text. For the special tokens of a vocabulary. */
#ifndef OE_TEXT_TRIE_H
#define OE_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t first_child; /* node, or -1 */
    int32_t sibling;     /* next child of the same parent, or -1 */
    int32_t id;          /* of the text that ends here, or -1 */
    uint8_t byte;
} oe_trie_node;

typedef struct {
    oe_trie_node *nodes;
    int32_t       size, capacity;
    int32_t       root[256]; /* children of the root, or -1 */
} oe_text_trie;

typedef struct {
    size_t  start, length;
    int32_t id;
} oe_trie_match;

void oe_text_trie_init(oe_text_trie *trie);
void oe_text_trie_free(oe_text_trie *trie);

/* 0, or -1 when memory is short. An empty key is not allowed. A key put twice keeps the later id. */
int oe_text_trie_put(oe_text_trie *trie, const char *key, size_t length, int32_t id);

/* The node one byte further, or -1; `node` is -1 at the root. */
int32_t oe_text_trie_child(const oe_text_trie *trie, int32_t node, uint8_t byte);

/* The leftmost match at or after `from`, the longest there. 1 when found, else 0. */
int oe_text_trie_next(const oe_text_trie *trie, const char *text, size_t size, size_t from, oe_trie_match *match);

#ifdef __cplusplus
}
#endif
#endif
