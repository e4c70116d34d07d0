#include <stdlib.h>

#include "kvcache/cells_table.h"

static const char *fault_of_cells(const oe_cells *cells) {
    int32_t used = 0, shared = 0, extent = 0;
    for (int32_t c = 0; c < cells->n; c++) {
        const uint64_t owners = cells->owners[c];
        if ((cells->position[c] >= 0) != (owners != 0) || cells->position[c] < OE_FREE) {
            return "used cells have positions, free cells have none";
        }
        if (oe_bitset_has(cells->free.level[0], c) != !owners) {
            return "the free set has the free cells";
        }
        used += owners != 0;
        shared += oe_is_shared(owners);
        extent = owners ? c + 1 : extent;
    }
    for (int k = 1; k < OE_TREE_LEVELS; k++) {
        for (int32_t i = 0; i < cells->free.words[k - 1]; i++) {
            if (oe_bitset_has(cells->free.level[k], i) != (cells->free.level[k - 1][i] != 0)) {
                return "levels of the free set agree";
            }
        }
    }
    if (used != cells->n_used || shared != cells->n_shared) {
        return "counts of used and shared cells";
    }
    return extent != cells->extent ? "the extent" : NULL;
}

static int ascending(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* It is the cells of one stretch of the sequence's positions. */
static bool order_is_right(const oe_cells *cells, int32_t s) {
    const oe_order *order = &cells->order[s];
    for (int32_t i = order->begin; i < order->end; i++) {
        const int32_t cell = order->cell[i];
        if (!oe_bitset_has(oe_cells_mine(cells, s), cell) ||
            (i > order->begin && cells->position[order->cell[i - 1]] >= cells->position[cell])) {
            return false;
        }
    }
    return order->end - order->begin <= cells->sequence[s].count;
}

/* `sorted` has room for all cells. */
static const char *fault_of_sequence(const oe_cells *cells, int32_t s, int32_t *sorted) {
    const oe_sequence *one = &cells->sequence[s];
    const uint64_t *mine = oe_cells_mine(cells, s);
    int32_t n = 0, lowest = -1, highest = -1;
    for (int32_t c = 0; c < cells->n; c++) {
        if (oe_bitset_has(mine, c) != (cells->owners[c] >> s & 1)) {
            return "both sides of the table agree";
        }
        if (oe_bitset_has(mine, c)) {
            lowest = n ? lowest : c;
            highest = c;
            sorted[n++] = cells->position[c];
        }
    }
    if (n != one->count) {
        return "count of cells";
    }
    if (n == 0) {
        return NULL;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    for (int32_t i = 1; i < n; i++) {
        if (sorted[i - 1] == sorted[i]) {
            return "each position once";
        }
    }
    if (lowest != one->lowest || highest != one->highest || sorted[0] != one->first || sorted[n - 1] != one->last ||
        !oe_bitset_has(mine, one->first_cell) || cells->position[one->first_cell] != one->first) {
        return "bounds";
    }
    if (!order_is_right(cells, s)) {
        return "the known order";
    }
    return one->next != (int64_t)one->last + 1 ? "where it goes on" : NULL;
}

const char *oe_cells_fault(const oe_cells *cells, int32_t *sequence) {
    const char *fault = fault_of_cells(cells);
    *sequence = -1;
    for (int32_t s = 0; !fault && s < OE_SEQUENCES; s++) {
        if (cells->sequence[s].count || oe_bitset_next(oe_cells_mine(cells, s), cells->words, 0) >= 0) {
            *sequence = s;
            fault = fault_of_sequence(cells, s, cells->scratch);
        }
    }
    return fault;
}
