/* Primitives of the table: gaining and losing a cell, and the list of a sequence's cells. Only for the files that
 * implement cells.h. */
#ifndef OE_CELLS_TABLE_H
#define OE_CELLS_TABLE_H

#include "kvcache/cells.h"

static inline int32_t oe_count(const oe_sequence *s) { return s->end - s->begin; }

/* The first and last position of a sequence that has cells. */
static inline int32_t oe_first(const oe_cells *cells, const oe_sequence *s) {
    return cells->position[s->cell[s->begin]];
}

static inline int32_t oe_last(const oe_cells *cells, const oe_sequence *s) {
    return cells->position[s->cell[s->end - 1]];
}

static inline void oe_settle_next(const oe_cells *cells, oe_sequence *s) {
    s->next = oe_count(s) ? (int64_t)oe_last(cells, s) + 1 : 0;
}

/* Gives a cell, already taken out of the free set, its position and first owner. */
static inline void oe_occupy(oe_cells *cells, int32_t cell, int32_t position) {
    cells->position[cell] = position;
    cells->n_owners[cell] = 1;
    cells->n_used++;
}

static inline void oe_add_owner(oe_cells *cells, int32_t cell) { cells->n_shared += ++cells->n_owners[cell] == 2; }

static inline void oe_drop_owner(oe_cells *cells, int32_t cell) {
    const int32_t left = --cells->n_owners[cell];
    cells->n_shared -= left == 1;
    if (left == 0) {
        cells->position[cell] = OE_FREE;
        cells->n_used--;
        oe_tree_add(&cells->free, cell);
    }
}

/* Makes room behind s->end for `n` more cells. False, with nothing changed, when there is no memory. */
bool oe_list_grow(oe_sequence *s, int32_t n);

/* Frees most of the list's unused memory. */
void oe_list_shrink(oe_sequence *s);

static inline bool oe_list_make_room(oe_sequence *s, int32_t n) { return s->room - s->end >= n || oe_list_grow(s, n); }

/* Adds a cell that has its position: append puts it behind all others, insert by position. There must be room. */
static inline void oe_list_append(oe_sequence *s, int32_t cell) {
    s->descents += s->end > s->begin && cell < s->cell[s->end - 1];
    s->cell[s->end++] = cell;
}

void oe_list_insert(const oe_cells *cells, oe_sequence *s, int32_t cell);

/* Removes the cells [i, j) from s->cell; each loses an owner. */
void oe_list_drop(oe_cells *cells, oe_sequence *s, int32_t i, int32_t j);

/* Counts s->descents again. */
void oe_list_settle(oe_sequence *s);

static inline bool oe_is_limited(const oe_cells *cells) { return cells->reach.window || cells->reach.chunk; }

/* Lists the sequence as advanced: later tokens may not see some of its cells any more. */
static inline void oe_advance(oe_cells *cells, int32_t sequence) {
    oe_sequence *s = &cells->sequence[sequence];
    if (!s->advanced && oe_is_limited(cells)) {
        s->advanced = true;
        cells->advanced[cells->n_advanced++] = sequence;
    }
}

/* The first position to keep: tokens from `next` on, or from `memory` positions before it, see none before. */
int64_t oe_kept_from(const oe_reach *reach, int64_t next);

/* Counts the cells that become free when the n sequences in cells->leaving lose their positions below s->below. It
 * writes to cells->lost, which oe_unweigh resets. */
typedef struct oe_losses {
    int32_t freed, unshared;
} oe_losses;

oe_losses oe_weigh(oe_cells *cells, int32_t n);
void oe_unweigh(oe_cells *cells, int32_t n);

/* Lists these sequences in cells->leaving, each once, with all their cells. Returns their number. */
int32_t oe_list_gone(oe_cells *cells, const int32_t *sequence, int64_t n);

#endif
