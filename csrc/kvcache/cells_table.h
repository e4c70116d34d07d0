/* One cell gained or lost by one sequence, and what is derived from that: for the files that implement cells.h. */
#ifndef OE_CELLS_TABLE_H
#define OE_CELLS_TABLE_H

#include "kvcache/cells.h"

static inline bool oe_is_shared(uint64_t owners) { return (owners & (owners - 1)) != 0; }

static inline int32_t oe_next_mine(const oe_cells *cells, int32_t s, int32_t cell) {
    return oe_bitset_next(oe_cells_mine(cells, s), cells->words, cell);
}

/* for (each cell of sequence s, ascending); the body may take s out of `cell`. */
#define OE_EACH_CELL(cells, s, cell)                                                                                   \
    int32_t cell = (cells)->sequence[s].count ? (cells)->sequence[s].lowest : -1;                                      \
    cell >= 0;                                                                                                         \
    cell = oe_next_mine(cells, s, cell + 1)

/* Adds a sequence to a cell that has its position. */
static inline void oe_attach(oe_cells *cells, int32_t s, int32_t cell) {
    oe_sequence *one = &cells->sequence[s];
    const int32_t position = cells->position[cell];
    const uint64_t before = cells->owners[cell];
    cells->owners[cell] |= (uint64_t)1 << s;
    cells->n_shared += before && !oe_is_shared(before);
    oe_bitset_add(cells->mine + (int64_t)s * cells->words, cell);
    if (one->count++ == 0) {
        one->lowest = one->highest = one->first_cell = cell;
        one->first = one->last = position;
        return;
    }
    one->lowest = cell < one->lowest ? cell : one->lowest;
    one->highest = cell > one->highest ? cell : one->highest;
    one->last = position > one->last ? position : one->last;
    if (position < one->first) {
        one->first = position;
        one->first_cell = cell;
    }
}

/* Takes a free cell. */
static inline void oe_occupy(oe_cells *cells, int32_t cell, int32_t position) {
    cells->position[cell] = position;
    oe_tree_drop(&cells->free, cell);
    cells->n_used++;
    cells->extent = cell >= cells->extent ? cell + 1 : cells->extent;
}

/* Forgets a cell of the known order: the first and the last one go alone, another takes all with it. */
static inline void oe_order_drop(oe_order *order, int32_t cell) {
    if (order->begin == order->end) {
        return;
    }
    if (order->cell[order->begin] == cell) {
        order->begin++;
    } else if (order->cell[order->end - 1] == cell) {
        order->end--;
    } else {
        order->begin = order->end = 0;
    }
}

/* Takes a sequence out of a cell. Its bounds are wrong until oe_settle_cells and, for positions, the caller have seen
 * to it, the extent until oe_settle_extent. */
static inline void oe_detach(oe_cells *cells, int32_t s, int32_t cell) {
    const uint64_t before = cells->owners[cell], after = before & ~((uint64_t)1 << s);
    cells->owners[cell] = after;
    cells->n_shared -= oe_is_shared(before) && !oe_is_shared(after);
    oe_bitset_drop(cells->mine + (int64_t)s * cells->words, cell);
    oe_order_drop(&cells->order[s], cell);
    cells->sequence[s].count--;
    if (!after) {
        cells->position[cell] = OE_FREE;
        oe_tree_add(&cells->free, cell);
        cells->n_used--;
    }
}

static inline void oe_settle_cells(oe_cells *cells, int32_t s) {
    oe_sequence *one = &cells->sequence[s];
    if (one->count) {
        one->lowest = oe_next_mine(cells, s, one->lowest);
        one->highest = oe_bitset_previous(oe_cells_mine(cells, s), one->highest);
    }
}

static inline void oe_settle_positions(oe_cells *cells, int32_t s) {
    oe_sequence *one = &cells->sequence[s];
    one->first = INT32_MAX;
    one->last = -1;
    for (OE_EACH_CELL(cells, s, cell)) {
        const int32_t position = cells->position[cell];
        one->last = position > one->last ? position : one->last;
        if (position <= one->first) {
            one->first = position;
            one->first_cell = cell;
        }
    }
}

/* The highest used cell up to `cell`, or -1. */
static inline int32_t oe_previous_used(const oe_cells *cells, int32_t cell) {
    while (cell >= 0 && !cells->owners[cell]) {
        const int32_t w = cell >> 6;
        /* Bits behind the last cell are not set: they count as used, and lie above `cell`. */
        const uint64_t used = ~cells->free.level[0][w] & ~(uint64_t)0 >> (63 - (cell & 63));
        cell = used ? (w << 6) + oe_bitset_highest(used) : (w << 6) - 1;
    }
    return cell;
}

static inline void oe_settle_extent(oe_cells *cells) { cells->extent = oe_previous_used(cells, cells->extent - 1) + 1; }

static inline void oe_settle_next(oe_cells *cells, int32_t s) {
    oe_sequence *one = &cells->sequence[s];
    one->next = one->count ? (int64_t)one->last + 1 : 0;
}

#endif
