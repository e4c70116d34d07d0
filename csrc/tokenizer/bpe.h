/* Byte-pair encoding of one pre-tokenized piece.
 *
 * Two flavours. Byte-level (GPT-2): a symbol is one byte, and the vocabulary spells byte b with a printable character,
 * `spelling[b]`. Raw (Gemma 4): a symbol is one UTF-8 character, and a character without a token falls back to the
 * tokens <0x00> ... <0xFF>.
 */
#ifndef OE_BPE_H
#define OE_BPE_H

#include "tokenizer/id_list.h"
#include "tokenizer/pair_merge.h"
#include "tokenizer/spm_boundaries.h"
#include "tokenizer/text_map.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    oe_text_map texts; /* of tokens, and of merge parts and results without a token: those ids are >= n_vocab */
    oe_pair_map merges;
    int32_t     n_vocab, n_texts;
    uint8_t    *whole; /* per token: 1 when it may stand for a whole piece without merging */
    int         byte_level;
    char        spelling[256][2];
    uint8_t     spelling_length[256];
    int32_t     symbols[256]; /* byte-level: id of each byte's spelling */
    int32_t     bytes[256];   /* token of a byte that nothing longer took, or -1 */
    int32_t     unknown;      /* token of a symbol that has neither, or -1 */
    oe_spm_boundaries boundaries; /* raw: of the results of merges */
} oe_bpe;

/* Functions that allocate return 0, or -1 when memory is short. */
int  oe_bpe_init(oe_bpe *bpe, int32_t n_vocab, uint32_t n_merges, int byte_level);
void oe_bpe_free(oe_bpe *bpe);

typedef struct {
    const char *start;
    uint32_t    length;
} oe_bpe_text;

/* Texts per batch. The tables of a vocabulary are larger than a cache, and each text hashes to another place. In a
 * batch all slots are prefetched first, so that texts do not wait for memory one after the other. */
enum { OE_BPE_BATCH = 32 };

/* Tokens `id`, `id` + 1, ... */
int oe_bpe_put_tokens(oe_bpe *bpe, const oe_bpe_text *texts, int n, int32_t id, const uint8_t *whole);

/* Adds merges "left right" of ranks `rank`, `rank` + 1, ..., after all tokens. Where a text has no space to split at,
 * returns the number of texts from there on. */
int oe_bpe_put_merges(oe_bpe *bpe, const oe_bpe_text *texts, int n, uint32_t rank);

/* After all tokens. */
int oe_bpe_finish(oe_bpe *bpe);

/* Appends the ids of one piece. With `whole`, a piece that is a token's text becomes that token at once.
 * A byte without a token adds nothing but is counted in `ids`. 0; -1 when memory is short; OE_STOPPED. */
int oe_bpe_encode(const oe_bpe *bpe, oe_scratch *scratch, const char *piece, size_t size, int whole, oe_id_list *ids);

#ifdef __cplusplus
}
#endif
#endif
