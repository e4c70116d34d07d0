/* A batch's rows as recurrent operations take them: three i32 operands of a ggml custom operation.
 *
 *   rows    [n]      the batch's rows, ordered by sequence and position
 *   bounds  [2, m]   for each segment its part of `rows`: [begin, end)
 *   slots   [2, m]   the slot of the state that it goes on from, and of the one that it leaves
 *
 * The segments of a sequence follow each other, and each reads what the one before it left. A segment may write the
 * slot that it reads, if no other reads it. The number of slots stands for none: zeros to read, nothing to write.
 * Segments that fill up the operands are empty. */
#ifndef OE_SEGMENTS_H
#define OE_SEGMENTS_H

#include "ggml.h"
#include "kernels/recurrent/kernel.h"

/* Segment i of the operands. `states` f32 [elements, slots], or NULL where none are stored. */
static inline oe_segment oe_segment_at(const struct ggml_tensor *rows, const struct ggml_tensor *bounds,
                                       const struct ggml_tensor *slots, const struct ggml_tensor *states, int64_t i) {
    const int32_t *bound = (const int32_t *)bounds->data + 2 * i, *slot = (const int32_t *)slots->data + 2 * i;
    const int64_t n_slots = states == NULL ? 0 : states->ne[1];
    oe_segment segment = {(const int32_t *)rows->data + bound[0], bound[1] - bound[0], NULL, NULL};
    if (slot[0] < n_slots) {
        segment.read = (const float *)((const char *)states->data + (size_t)slot[0] * states->nb[1]);
    }
    if (slot[1] < n_slots) {
        segment.write = (float *)((char *)states->data + (size_t)slot[1] * states->nb[1]);
    }
    return segment;
}

#endif
