#include "kvcache/cells_table.h"

int32_t oe_cells_pack_plan(const oe_cells *cells, int32_t begin, int32_t end, int32_t most, int32_t *source,
                           int32_t *target) {
    int32_t n = 0, to = begin;
    for (int32_t cell = begin; cell < end && n < most; cell++) {
        if (cells->position[cell] == OE_FREE) {
            continue;
        }
        if (cell != to) {
            source[n] = cell;
            target[n++] = to;
        }
        to++;
    }
    return n;
}

/* Moves are in the order of cells, so a target was free or is the source of an earlier one. `lost` notes where each
 * source went, plus 1; lists keep their order, and so their descents. */
void oe_cells_pack(oe_cells *cells, const int32_t *source, const int32_t *target, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const int32_t from = source[i], to = target[i];
        cells->position[to] = cells->position[from];
        cells->n_owners[to] = cells->n_owners[from];
        cells->position[from] = OE_FREE;
        cells->n_owners[from] = 0;
        oe_tree_drop(&cells->free, to);
        oe_tree_add(&cells->free, from);
        cells->lost[from] = to + 1;
    }
    for (int32_t i = 0; i < cells->n_sequences; i++) {
        const oe_sequence *s = &cells->sequence[i];
        for (int32_t k = s->begin; k < s->end; k++) {
            const int32_t moved = cells->lost[s->cell[k]];
            s->cell[k] = moved ? moved - 1 : s->cell[k];
        }
    }
    for (int32_t i = 0; i < n; i++) {
        cells->lost[source[i]] = 0;
    }
}
