/* What each row of a batch attends to, as indices of cells in the order of positions: FlashInfer's paged KV indices,
 * with pages of one token. */
#ifndef OE_KV_INDICES_H
#define OE_KV_INDICES_H

#include <stdint.h>

#include "kvcache/cells.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cells of these sequences, each sequence counted once. */
int64_t oe_kv_indices_length(oe_cells *cells, const int32_t *sequence, int64_t n);

/* index[oe_kv_indices_length]: the cells of each of these sequences, one sequence after the other. range[n][2]: where
 * in it those of row i begin, and before what they end. Row i sees the cells of sequence[i] with first[i] <= position
 * <= last[i]; rows of one sequence have ranges of one list. Returns the length. What it costs is the copying. */
int64_t oe_kv_indices_fill(oe_cells *cells, const int32_t *sequence, const int32_t *first, const int32_t *last,
                           int64_t n, int32_t *range, int32_t *index);

#ifdef __cplusplus
}
#endif

#endif
