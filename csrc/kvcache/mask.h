/* Masks of attention: for each row of a batch, which cells of a run it attends to, as the f16 numbers that are added to
 * the scores: 0 where it does, minus infinity where not. */
#ifndef OE_MASK_H
#define OE_MASK_H

#include <stdint.h>

#include "kvcache/cells.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mask[n * (end - begin)]: row i sees the cells of sequence[i] with first[i] <= position <= last[i].
 * 0 <= begin <= end <= cells->n. */
void oe_mask_fill(const oe_cells *cells, int32_t begin, int32_t end, const int32_t *sequence, const int32_t *first,
                  const int32_t *last, int64_t n, uint16_t *mask);

#ifdef __cplusplus
}
#endif

#endif
