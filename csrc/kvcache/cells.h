/* The cell table of a key and value cache: which token lies in which row. Numbers only; the rows are elsewhere.
 *
 * A cell has a position and the set of sequences that share it. The table is kept from both sides, owners of a cell and
 * cells of a sequence, and every answer that a step asks for is kept up to date by the changes: what a step costs does
 * not depend on how many cells there are, as long as the cells of a sequence ascend with their positions.
 *
 * Callers see to it that cells are 0..n-1, sequences 0..63 and positions 0..2^31-1; everything else is checked here.
 * Functions that take a `const oe_cells *` change nothing that can be seen. */
#ifndef OE_CELLS_H
#define OE_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bitset.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OE_CELLS_MAX ((int32_t)1 << 24)
#define OE_SEQUENCES 64
#define OE_FREE (-1) /* position of a free cell */

typedef struct oe_sequence {
    int32_t count;      /* cells that it has; the next five mean something when there are any */
    int32_t lowest;     /* cell */
    int32_t highest;    /* cell */
    int32_t first;      /* lowest position */
    int32_t last;       /* highest position */
    int32_t first_cell; /* the cell of the lowest position */
    int64_t next;       /* where it goes on: last + 1, also after `oe_cells_drop_below` has taken all; 0 at first */
} oe_sequence;

/* Cells of a sequence in the order of positions, as far as kv_indices.c has found it. What is known is right, and
 * follows without a gap; cells that are gained come to it when the order is asked for. */
typedef struct oe_order {
    int32_t *cell;      /* [room] */
    int32_t room;
    int32_t begin, end; /* those that are known; begin == end: none */
} oe_order;

typedef struct oe_cells {
    int32_t n;
    int32_t words;       /* oe_bitset_words(n) */
    int32_t *position;   /* [64 * words] OE_FREE where no sequence has the cell */
    uint64_t *owners;    /* [n] one bit for each sequence */
    uint64_t *mine;      /* [OE_SEQUENCES * words] the same from the other side: one bit for each cell */
    oe_bit_tree free;    /* cells without owners */
    int32_t n_used;      /* cells with owners */
    int32_t n_shared;    /* cells with two or more */
    int32_t extent;      /* one more than the highest used cell */
    int32_t *scratch;    /* [64 * words] for one call, of oe_mask_fill or oe_kv_indices_fill */
    oe_order order[OE_SEQUENCES];
    oe_sequence sequence[OE_SEQUENCES];
} oe_cells;

typedef struct oe_cells_usage {
    int32_t used, shared, extent;
} oe_cells_usage;

/* 1 <= n <= OE_CELLS_MAX. NULL when there is no memory. */
oe_cells *oe_cells_create(int32_t n);
void oe_cells_destroy(oe_cells *cells);

static inline const uint64_t *oe_cells_mine(const oe_cells *cells, int32_t sequence) {
    return cells->mine + (int64_t)sequence * cells->words;
}

/* -- one step -- */

/* Where n tokens go: for each the lowest free cell above the highest of its sequence, earlier tokens of the call
 * included, or the lowest free one where none is above. False when fewer than n cells are free. */
bool oe_cells_find(oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *found);

/* Gives n cells a position and a sequence each. False, with nothing changed, when one is not free. */
bool oe_cells_place(oe_cells *cells, const int32_t *where, const int32_t *position, const int32_t *sequence, int64_t n);

/* The lowest cell of these sequences, and one more than the highest; 0 and 0 when they have none. */
void oe_cells_span(const oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *begin, int32_t *end);

/* The first position of each sequence that is still to be computed, [OE_SEQUENCES]: the lowest of a batch of n tokens,
 * which are not placed yet, or where the sequence goes on. */
void oe_cells_next(const oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n, int64_t *next);

/* Takes each sequence out of its cells with positions below ends[sequence]; it goes on where it did. */
void oe_cells_drop_below(oe_cells *cells, const int64_t *ends);

/* What the table would hold after that. */
oe_cells_usage oe_cells_usage_without(const oe_cells *cells, const int64_t *ends);
int32_t oe_cells_free_without(const oe_cells *cells, const int64_t *ends);

/* -- one request -- */

/* Whether a sequence has every position from begin to before end. */
bool oe_cells_has_all(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t end);

/* Lets `target` have the cells of `source` with positions below `end`; how many, or -1 when it has cells already. */
int32_t oe_cells_share(oe_cells *cells, int32_t source, int32_t target, int64_t end);

/* Takes a sequence out of its cells with begin <= position < end; how many. */
int32_t oe_cells_remove(oe_cells *cells, int32_t sequence, int64_t begin, int64_t end);

/* Gives a free cell its position and owners, not none of them. */
void oe_cells_put(oe_cells *cells, int32_t cell, int32_t position, uint64_t owners);

/* -- moving -- */

/* Where keys go when a sequence loses `discard` positions from `begin` on. Cells of it alone stay, in ascending order;
 * then shared ones, which go to cells that are free by then. Both arrays have room for all of its cells. How many, or
 * -1 when there are too few cells to go to. */
int32_t oe_cells_shift_plan(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, int32_t *source,
                            int32_t *target);

/* Carries out a plan of oe_cells_shift_plan that was made of the table as it is. */
void oe_cells_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *source,
                    const int32_t *target, int32_t n);

/* The fewest moves that leave no hole below a used cell: the highest used ones, downwards, into the lowest holes,
 * upwards. Both arrays have room for all used or all free cells, whichever are fewer. */
int32_t oe_cells_defrag_plan(const oe_cells *cells, int32_t *source, int32_t *target);

/* Gives n free cells what n used ones have, which become free. False, with nothing changed, where one is neither. */
bool oe_cells_move(oe_cells *cells, const int32_t *source, const int32_t *target, int64_t n);

/* -- debugging -- */

/* What is wrong with the table, or NULL; -1 or the sequence that it is about in *sequence. */
const char *oe_cells_fault(const oe_cells *cells, int32_t *sequence);

#ifdef __cplusplus
}
#endif

#endif
