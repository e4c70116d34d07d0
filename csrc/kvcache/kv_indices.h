/* KV indices: for each row of a batch the cells that it attends to, in the order of positions. They are FlashInfer's
 * paged KV indices, with pages of one token. */
#ifndef OE_KV_INDICES_H
#define OE_KV_INDICES_H

#include <stdint.h>

#include "kvcache/cells.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number of cells of these sequences, each sequence counted once. */
int64_t oe_kv_indices_length(oe_cells *cells, const int32_t *sequence, int64_t n);

/* index[oe_kv_indices_length]: the cells of these sequences, one sequence after the other. range[n][2]: for row i its
 * part [begin, end) of index. Row i sees the cells of sequence[i] with first[i] <= position <= last[i]; rows of one
 * sequence have ranges in one list. Returns the length. The cost is that of copying. */
int64_t oe_kv_indices_fill(oe_cells *cells, const int32_t *sequence, const int32_t *first, const int32_t *last,
                           int64_t n, int32_t *range, int32_t *index);

#ifdef __cplusplus
}
#endif

#endif
