#include <stddef.h>

#include "kvcache/cells_table.h"

static bool is_shared(const oe_cells *cells, int32_t cell) { return cells->n_owners[cell] - cells->lost[cell] > 1; }

/* Indices in s->cell: cells [discarded, moved) are discarded, cells [moved, s->end) move down. */
typedef struct parts {
    int32_t discarded, moved;
} parts;

static parts parts_of(const oe_cells *cells, const oe_sequence *s, int64_t begin, int64_t discard) {
    return (parts){oe_index(cells, s, begin), oe_index(cells, s, begin + discard)};
}

bool oe_cells_can_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *without,
                        int64_t n) {
    const oe_sequence *s = &cells->sequence[sequence];
    const parts at = parts_of(cells, s, begin, discard);
    const int32_t gone = oe_list_gone(cells, without, n);
    int32_t room = cells->n - cells->n_used + oe_weigh(cells, gone).freed;
    for (int32_t i = at.discarded; i < at.moved; i++) {
        room += !is_shared(cells, s->cell[i]);
    }
    for (int32_t i = at.moved; i < s->end; i++) {
        room -= is_shared(cells, s->cell[i]);
    }
    oe_unweigh(cells, gone);
    return room >= 0;
}

int32_t oe_cells_shift_plan(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, int32_t *source,
                            int32_t *target) {
    const oe_sequence *s = &cells->sequence[sequence];
    const parts at = parts_of(cells, s, begin, discard);
    if (!oe_cells_can_shift(cells, sequence, begin, discard, NULL, 0)) {
        return -1;
    }
    for (int32_t i = at.discarded; i < at.moved; i++) { /* they will be free by then; marked so temporarily */
        if (!is_shared(cells, s->cell[i])) {
            oe_tree_add(&cells->free, s->cell[i]);
        }
    }
    int32_t n = 0, last = -1;
    for (int32_t i = at.moved; i < s->end; i++, n++) {
        source[n] = target[n] = s->cell[i];
        if (is_shared(cells, source[n])) {
            target[n] = last = oe_tree_next(&cells->free, last + 1);
        }
    }
    for (int32_t i = at.discarded; i < at.moved; i++) {
        if (!is_shared(cells, s->cell[i])) {
            oe_tree_drop(&cells->free, s->cell[i]);
        }
    }
    return n;
}

void oe_cells_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *target) {
    oe_sequence *s = &cells->sequence[sequence];
    const parts at = parts_of(cells, s, begin, discard);
    oe_list_drop(cells, s, at.discarded, at.moved);
    for (int32_t i = oe_index(cells, s, begin); i < s->end; i++) {
        const int32_t cell = s->cell[i], to = *target++, position = cells->position[cell] - (int32_t)discard;
        if (to == cell) {
            cells->position[cell] = position;
            continue;
        }
        oe_drop_owner(cells, cell); /* other sequences keep it */
        oe_tree_drop(&cells->free, to);
        oe_occupy(cells, to, position);
        s->cell[i] = to;
    }
    oe_list_settle(s);
    oe_settle_next(cells, s);
    oe_advance(cells, sequence);
}
