/* SentencePiece BPE: neighbours merge when their joint text is a piece, the piece of the highest score first. */
#ifndef OE_SPM_H
#define OE_SPM_H

#include "tokenizer/id_list.h"
#include "tokenizer/pair_merge.h"
#include "tokenizer/spm_boundaries.h"
#include "tokenizer/text_map.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    oe_text_map texts;  /* of the pieces that text can become: not control, unknown and byte pieces */
    int32_t     n_vocab;
    uint32_t   *ranks;  /* per piece: 0 for the highest score; equal scores have equal ranks */
    uint8_t    *unused; /* per piece: 1 when it may be built on the way but not be a result */
    int         any_unused;
    oe_spm_boundaries boundaries;
    int32_t     bytes[256]; /* piece <0xHH>, or -1 */
    int32_t     unknown;    /* or -1 */
} oe_spm;

/* Functions that allocate return 0, or -1 when memory is short. */
int  oe_spm_init(oe_spm *spm, int32_t n_vocab);
void oe_spm_free(oe_spm *spm);
int  oe_spm_put_piece(oe_spm *spm, const char *text, uint32_t length, int32_t id, uint32_t rank, int unused);

/* Appends the ids of a text whose spaces are U+2581 already.
 * Returns 0; -1 when memory is short; OE_STOPPED; or 1 + b when byte b has neither a byte piece nor an unknown one. */
int oe_spm_encode(const oe_spm *spm, oe_scratch *scratch, const char *text, size_t size, oe_id_list *ids);

#ifdef __cplusplus
}
#endif
#endif
