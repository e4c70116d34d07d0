/* SentencePiece unigram: splits a text into the pieces with the highest sum of scores (Viterbi). */
#ifndef OE_UNIGRAM_H
#define OE_UNIGRAM_H

#include "tokenizer/checkpoint.h"
#include "tokenizer/id_list.h"
#include "tokenizer/spm_boundaries.h"
#include "tokenizer/text_trie.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    oe_text_trie pieces;        /* that text can become: not control, unknown, unused and byte pieces */
    double      *scores;        /* per piece; sums of float32 as doubles are exact in any order, or nearly */
    oe_spm_boundaries boundaries;
    double       unknown_score; /* of a character that is no piece */
    int32_t      bytes[256];    /* piece <0xHH>, or -1 */
    int32_t      unknown;       /* or -1 */
} oe_unigram;

/* Functions that allocate return 0, or -1 when memory is short. */
int  oe_unigram_init(oe_unigram *model, int32_t n_vocab);
void oe_unigram_free(oe_unigram *model);
int  oe_unigram_put_piece(oe_unigram *model, const char *text, size_t length, int32_t id, double score);

/* Appends the ids of a normalized text whose spaces are U+2581 already.
 * Returns 0; -1 when memory is short; OE_STOPPED; or 1 + b when byte b has neither a byte piece nor an unknown one. */
int oe_unigram_encode(const oe_unigram *model, const char *text, size_t size, oe_checkpoint *checkpoint,
                      oe_id_list *ids);

#ifdef __cplusplus
}
#endif
#endif
