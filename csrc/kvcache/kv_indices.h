/* What each row of a batch attends to, as lists of cells in the order of positions. */
#ifndef OE_KV_INDICES_H
#define OE_KV_INDICES_H

#include <stdint.h>

#include "kvcache/cells.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OE_KV_INDICES_NO_MEMORY (-1)

/* Cells of these sequences, each sequence counted once. */
int64_t oe_kv_indices_length(const oe_cells *cells, const int32_t *sequence, int64_t n);

/* list[oe_kv_indices_length]: the cells of each of these sequences, one after the other; part[n][2]: where in it those
 * of row i begin, and before what they end. Row i sees the cells of sequence[i] with first[i] <= position <= last[i].
 * Rows of one sequence have parts of one list. Returns its length or OE_KV_INDICES_NO_MEMORY.
 *
 * The table remembers the order that it found: what a step costs that adds a cell to each sequence is the copying. One
 * call at a time. */
int64_t oe_kv_indices_fill(oe_cells *cells, const int32_t *sequence, const int32_t *first, const int32_t *last,
                           int64_t n,
                      int32_t *part, int32_t *list);

#ifdef __cplusplus
}
#endif

#endif
