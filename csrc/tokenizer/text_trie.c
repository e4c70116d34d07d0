#include "tokenizer/text_trie.h"

#include <stdlib.h>
#include <string.h>

void oe_text_trie_init(oe_text_trie *trie) {
    memset(trie, 0, sizeof *trie);
    memset(trie->root, 0xff, sizeof trie->root);
}

void oe_text_trie_free(oe_text_trie *trie) {
    free(trie->nodes);
    oe_text_trie_init(trie);
}

static int32_t new_node(oe_text_trie *trie, uint8_t byte, int32_t sibling) {
    if (trie->size == trie->capacity) {
        size_t capacity = (size_t)trie->capacity * 2 + 256;
        oe_trie_node *nodes = capacity > INT32_MAX ? NULL : realloc(trie->nodes, capacity * sizeof *nodes);
        if (!nodes) {
            return -1;
        }
        trie->nodes = nodes;
        trie->capacity = (int32_t)capacity;
    }
    trie->nodes[trie->size] = (oe_trie_node){-1, sibling, -1, byte};
    return trie->size++;
}

int32_t oe_text_trie_child(const oe_text_trie *trie, int32_t node, uint8_t byte) {
    if (node < 0) {
        return trie->root[byte];
    }
    int32_t at = trie->nodes[node].first_child;
    while (at >= 0 && trie->nodes[at].byte != byte) {
        at = trie->nodes[at].sibling;
    }
    return at;
}

int oe_text_trie_put(oe_text_trie *trie, const char *key, size_t length, int32_t id) {
    uint8_t first = (uint8_t)key[0];
    if (trie->root[first] < 0) {
        trie->root[first] = new_node(trie, first, -1);
    }
    int32_t node = trie->root[first];
    for (size_t i = 1; i < length && node >= 0; ++i) {
        int32_t next = oe_text_trie_child(trie, node, (uint8_t)key[i]);
        if (next < 0) {
            next = new_node(trie, (uint8_t)key[i], trie->nodes[node].first_child);
            if (next >= 0) {
                trie->nodes[node].first_child = next;
            }
        }
        node = next;
    }
    if (node < 0) {
        return -1;
    }
    trie->nodes[node].id = id;
    return 0;
}

int oe_text_trie_next(const oe_text_trie *trie, const char *text, size_t size, size_t from, oe_trie_match *match) {
    for (size_t start = from; start < size; ++start) {
        int32_t node = trie->root[(uint8_t)text[start]];
        match->length = 0;
        for (size_t i = start; node >= 0;) {
            ++i;
            if (trie->nodes[node].id >= 0) {
                match->length = i - start;
                match->id = trie->nodes[node].id;
            }
            node = i < size ? oe_text_trie_child(trie, node, (uint8_t)text[i]) : -1;
        }
        if (match->length > 0) {
            match->start = start;
            return 1;
        }
    }
    return 0;
}
