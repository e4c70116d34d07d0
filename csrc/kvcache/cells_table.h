/* What all changes of a table are made of: a cell gained or lost, and the list of a sequence's cells. For the files
 * that implement cells.h. */
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

/* Gives a cell that was taken out of the free ones its position and first owner. */
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

/* Where in s->cell the first position of `position` or more is; s->end where there is none. */
int32_t oe_index(const oe_cells *cells, const oe_sequence *s, int64_t position);

/* Room behind s->end for `n` more. False, with nothing changed, when there is no memory. */
bool oe_list_grow(oe_sequence *s, int32_t n);

/* Gives back most of what it does not need. */
void oe_list_shrink(oe_sequence *s);

static inline bool oe_list_make_room(oe_sequence *s, int32_t n) { return s->room - s->end >= n || oe_list_grow(s, n); }

/* Adds a cell that has its position, and that there is room for: behind all others, or where it belongs. */
static inline void oe_list_append(oe_sequence *s, int32_t cell) {
    s->descents += s->end > s->begin && cell < s->cell[s->end - 1];
    s->cell[s->end++] = cell;
}

void oe_list_insert(const oe_cells *cells, oe_sequence *s, int32_t cell);

/* Takes out what s->cell has from i to before j; the cells lose an owner. */
void oe_list_drop(oe_cells *cells, oe_sequence *s, int32_t i, int32_t j);

/* Counts s->descents anew. */
void oe_list_settle(oe_sequence *s);

static inline bool oe_is_limited(const oe_cells *cells) { return cells->reach.window || cells->reach.chunk; }

/* Notes that some of its cells may be out of sight. */
static inline void oe_advance(oe_cells *cells, int32_t sequence) {
    oe_sequence *s = &cells->sequence[sequence];
    if (!s->advanced && oe_is_limited(cells)) {
        s->advanced = true;
        cells->advanced[cells->n_advanced++] = sequence;
    }
}

/* Where it would begin if it lost what no token from `next` on sees. */
int64_t oe_kept_from(const oe_reach *reach, int64_t next);

/* Counts what would be free if n sequences, those of cells->leaving, lost their positions below `below`; oe_unweigh
 * undoes what this did to cells->lost. */
typedef struct oe_losses {
    int32_t freed, unshared;
} oe_losses;

oe_losses oe_weigh(oe_cells *cells, int32_t n);
void oe_unweigh(oe_cells *cells, int32_t n);

/* Lists these sequences, each once, as leaving with all that they have; how many. */
int32_t oe_list_gone(oe_cells *cells, const int32_t *sequence, int64_t n);

#endif
