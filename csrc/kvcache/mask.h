/* Attention masks: f16 numbers that are added to the scores, 0 for cells that a row attends to and minus infinity for
 * all others. */
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

/* mask[n * width]: row i sees the columns [range[i][0], range[i][1]); 0 <= range[i][0] <= range[i][1] <= width. */
void oe_mask_of_ranges(const int32_t *range, int64_t n, int32_t width, uint16_t *mask);

#ifdef __cplusplus
}
#endif

#endif
