/* Sets of small numbers in 64-bit words: a flat set, and a tree that skips wide gaps to the next member. */
#ifndef OE_BITSET_H
#define OE_BITSET_H

#include <stdbool.h>
#include <stdint.h>

static inline int32_t oe_bitset_words(int32_t n) { return (n + 63) / 64; }

static inline bool oe_bitset_has(const uint64_t *words, int32_t i) { return words[i >> 6] >> (i & 63) & 1; }

static inline void oe_bitset_add(uint64_t *words, int32_t i) { words[i >> 6] |= (uint64_t)1 << (i & 63); }

static inline void oe_bitset_drop(uint64_t *words, int32_t i) { words[i >> 6] &= ~((uint64_t)1 << (i & 63)); }

static inline int32_t oe_bitset_lowest(uint64_t word) { return __builtin_ctzll(word); }

static inline int32_t oe_bitset_highest(uint64_t word) { return 63 - __builtin_clzll(word); }

/* The lowest member >= `i`, or -1; `i` may lie behind the end. */
static inline int32_t oe_bitset_next(const uint64_t *words, int32_t n_words, int32_t i) {
    int32_t w = i >> 6;
    if (w >= n_words) {
        return -1;
    }
    uint64_t word = words[w] & ~(uint64_t)0 << (i & 63);
    while (!word) {
        if (++w == n_words) {
            return -1;
        }
        word = words[w];
    }
    return (w << 6) + oe_bitset_lowest(word);
}

/* Two more levels mark the words below that have a member: for 2^24 numbers the top level has 64 words. */
#define OE_TREE_LEVELS 3

typedef struct oe_bit_tree {
    uint64_t *level[OE_TREE_LEVELS];
    int32_t words[OE_TREE_LEVELS];
} oe_bit_tree;

static inline void oe_tree_add(oe_bit_tree *tree, int32_t i) {
    for (int k = 0; k < OE_TREE_LEVELS; k++, i >>= 6) {
        oe_bitset_add(tree->level[k], i);
    }
}

static inline void oe_tree_drop(oe_bit_tree *tree, int32_t i) {
    for (int k = 0; k < OE_TREE_LEVELS; k++, i >>= 6) {
        oe_bitset_drop(tree->level[k], i);
        if (tree->level[k][i >> 6]) {
            return;
        }
    }
}

/* As oe_bitset_next. */
static inline int32_t oe_tree_next(const oe_bit_tree *tree, int32_t i) {
    int k = 0;
    for (; k < OE_TREE_LEVELS - 1; k++, i = (i >> 6) + 1) {
        const int32_t w = i >> 6;
        if (w >= tree->words[k]) {
            return -1;
        }
        const uint64_t word = tree->level[k][w] & ~(uint64_t)0 << (i & 63);
        if (word) {
            i = (w << 6) + oe_bitset_lowest(word);
            break;
        }
    }
    if (k == OE_TREE_LEVELS - 1) {
        i = oe_bitset_next(tree->level[k], tree->words[k], i);
        if (i < 0) {
            return -1;
        }
    }
    while (k-- > 0) {
        i = (i << 6) + oe_bitset_lowest(tree->level[k][i]);
    }
    return i;
}

#endif
