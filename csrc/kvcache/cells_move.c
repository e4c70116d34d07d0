#include "kvcache/cells_table.h"

/* Cells of word w that are free, or will be when the sequence has lost its positions from begin to before end. */
static uint64_t free_by_then(const oe_cells *cells, int32_t w, int32_t sequence, int64_t begin, int64_t end) {
    uint64_t found = cells->free.level[0][w];
    for (uint64_t mine = oe_cells_mine(cells, sequence)[w]; mine; mine &= mine - 1) {
        const int32_t cell = (w << 6) + oe_bitset_lowest(mine);
        if (cells->position[cell] >= begin && cells->position[cell] < end && !oe_is_shared(cells->owners[cell])) {
            found |= mine & -mine;
        }
    }
    return found;
}

int32_t oe_cells_shift_plan(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, int32_t *source,
                            int32_t *target) {
    int32_t n = 0, filled;
    for (OE_EACH_CELL(cells, sequence, cell)) {
        if (cells->position[cell] >= begin + discard && !oe_is_shared(cells->owners[cell])) {
            source[n] = target[n] = cell;
            n++;
        }
    }
    filled = n;
    for (OE_EACH_CELL(cells, sequence, cell)) {
        if (cells->position[cell] >= begin + discard && oe_is_shared(cells->owners[cell])) {
            source[n++] = cell;
        }
    }
    for (int32_t w = 0; w < cells->words && filled < n; w++) {
        uint64_t found = free_by_then(cells, w, sequence, begin, begin + discard);
        for (; found && filled < n; found &= found - 1) {
            target[filled++] = (w << 6) + oe_bitset_lowest(found);
        }
    }
    return filled < n ? -1 : n;
}

void oe_cells_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *source,
                    const int32_t *target, int32_t n) {
    oe_cells_remove(cells, sequence, begin, begin + discard);
    cells->order[sequence].begin = cells->order[sequence].end = 0; /* positions change */
    for (int32_t i = 0; i < n; i++) {
        const int32_t position = cells->position[source[i]] - (int32_t)discard;
        if (source[i] == target[i]) {
            cells->position[target[i]] = position;
            continue;
        }
        oe_detach(cells, sequence, source[i]); /* others have it */
        oe_occupy(cells, target[i], position);
        oe_attach(cells, sequence, target[i]);
    }
    oe_settle_cells(cells, sequence);
    oe_settle_positions(cells, sequence);
    oe_settle_next(cells, sequence);
}

int32_t oe_cells_defrag_plan(const oe_cells *cells, int32_t *source, int32_t *target) {
    int32_t n = 0, top = cells->extent - 1;
    for (int32_t hole = oe_tree_next(&cells->free, 0); hole >= 0 && hole < cells->n_used;
         hole = oe_tree_next(&cells->free, hole + 1)) {
        source[n] = top;
        target[n++] = hole;
        top = oe_previous_used(cells, top - 1);
    }
    return n;
}

static void move_one(oe_cells *cells, int32_t source, int32_t target) {
    const uint64_t owners = cells->owners[source];
    oe_occupy(cells, target, cells->position[source]);
    for (uint64_t left = owners; left; left &= left - 1) {
        const int32_t s = oe_bitset_lowest(left);
        oe_sequence *one = &cells->sequence[s];
        const bool first = one->first_cell == source;
        oe_attach(cells, s, target); /* so that the sequence is never empty, and its positions stay right */
        oe_detach(cells, s, source);
        one->first_cell = first ? target : one->first_cell;
        oe_settle_cells(cells, s);
    }
    oe_settle_extent(cells);
}

static bool can_move(const oe_cells *cells, int32_t source, int32_t target) {
    return cells->owners[source] && !cells->owners[target];
}

bool oe_cells_move(oe_cells *cells, const int32_t *source, const int32_t *target, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!can_move(cells, source[i], target[i])) {
            while (i-- > 0) {
                move_one(cells, target[i], source[i]);
            }
            return false;
        }
        move_one(cells, source[i], target[i]);
    }
    return true;
}
