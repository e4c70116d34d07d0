/* The cell table of a key and value cache: which token lies in which row. Numbers only; the rows are elsewhere.
 *
 * A cell has a position and a count of the sequences that share it. A sequence has a list of its cells in the order of
 * their positions. So memory goes by what is held, not by cells times sequences, and what a decoding step costs depends
 * neither on how many cells there are nor on sequences that are idle.
 *
 * A table may be told how far back tokens see (oe_reach). Then it knows which cells no later token sees, and gives them
 * up when others need them. Only sequences that gained cells since the last time can have such: they are listed.
 *
 * Callers see to it that cells are 0..n-1, positions 0..2^31-1, and sequences those of oe_cells_hold; everything else
 * is checked here. Functions that take a `const oe_cells *` change nothing. Apart from these, use a table from one
 * thread at a time; but oe_cells_usage may be asked while a mask or indices are filled. */
#ifndef OE_CELLS_H
#define OE_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bitset.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OE_CELLS_MAX ((int32_t)1 << 24)
#define OE_SEQUENCES_MAX ((int32_t)1 << 20)
#define OE_FREE (-1) /* position of a free cell */
#define OE_NO_MEMORY (-2)

/* How far back a token sees. `window`: itself and the window - 1 tokens before it; `chunk`: from the last multiple of
 * it on; neither where both are 0. `memory`: how many positions back a sequence can be resumed. Each below 2^33. */
typedef struct oe_reach {
    int64_t window, chunk, memory;
} oe_reach;

typedef struct oe_sequence {
    int32_t *cell;      /* [room] */
    int32_t room;
    int32_t begin, end; /* the part of `cell` that holds its cells, in the order of positions */
    int32_t descents;   /* how many of them are lower than the one before */
    int64_t next;       /* where it goes on: its last position + 1, also after that was given up; 0 at first */
    bool advanced;      /* it is listed in oe_cells.advanced */
    /* of one call */
    uint64_t stamp;
    int64_t mark;
    int64_t below;
} oe_sequence;

typedef struct oe_cells {
    int32_t n;
    oe_reach reach;
    int32_t *position;     /* [n] OE_FREE where no sequence has the cell */
    int32_t *n_owners;     /* [n] */
    oe_bit_tree free;      /* cells without owners */
    int32_t n_used;        /* cells with owners */
    int32_t n_shared;      /* cells with two or more */
    int32_t n_sequences;
    oe_sequence *sequence; /* [n_sequences] */
    int32_t *advanced;     /* [n_sequences] those that gained cells since oe_cells_slide */
    int32_t n_advanced;
    /* of one call */
    uint64_t stamp;
    int32_t *leaving;      /* [n_sequences] */
    int32_t *lost;         /* [n] all 0 between calls */
} oe_cells;

typedef struct oe_cells_held {
    int32_t used, shared;
} oe_cells_held;

/* 1 <= n <= OE_CELLS_MAX. NULL when there is no memory. */
oe_cells *oe_cells_create(int32_t n, oe_reach reach);
void oe_cells_destroy(oe_cells *cells);

/* Makes sure that sequences 0..n-1 can be spoken of. False when there is no memory. */
bool oe_cells_hold(oe_cells *cells, int32_t n);

/* -- one step -- */

/* Whether the tokens of each sequence come in the order of their positions. */
bool oe_cells_in_order(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n);

/* Where n tokens go, those of each sequence in order: the lowest free cell behind the last one of its sequence, earlier
 * tokens of the call included, or the lowest free one where none is behind. False when fewer than n cells are free. */
bool oe_cells_find(oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *found);

/* Gives n cells a position and a sequence each: 1. Nothing changes where a cell is not free or a sequence has a
 * position already (0), or there is no memory (OE_NO_MEMORY). */
int oe_cells_place(oe_cells *cells, const int32_t *where, const int32_t *position, const int32_t *sequence, int64_t n);

/* The lowest cell of these sequences, and one more than the highest; 0 and 0 when they have none. */
void oe_cells_span(const oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *begin, int32_t *end);

/* -- what no later token sees -- */

/* Takes each sequence out of the cells that neither its rows among these n, not placed yet, nor later ones see. */
void oe_cells_slide(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n);

/* Free cells that there would be after that. */
int32_t oe_cells_room_for(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n);

/* Free cells that there would be after oe_cells_slide without rows, and without these n sequences. */
int32_t oe_cells_room(oe_cells *cells, const int32_t *sequence, int64_t n);

/* What the table would hold after oe_cells_slide without rows. */
oe_cells_held oe_cells_usage(oe_cells *cells);

/* -- one sequence -- */

/* Whether it has every position from begin to before end. */
bool oe_cells_has_all(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t end);

/* Lets `target` have the cells of `source` with positions below `end`; how many, -1 when it has cells already, or
 * OE_NO_MEMORY. */
int32_t oe_cells_share(oe_cells *cells, int32_t source, int32_t target, int64_t end);

/* Takes it out of its cells with begin <= position < end; how many. */
int32_t oe_cells_remove(oe_cells *cells, int32_t sequence, int64_t begin, int64_t end);

/* Where keys go when it loses `discard` positions from `begin` on, in the order of positions. Cells of it alone stay;
 * those that it shares go to the lowest cells that are free by then. Both arrays have room for all of its cells. How
 * many, or -1 when there are too few cells to go to. */
int32_t oe_cells_shift_plan(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, int32_t *source,
                            int32_t *target);

/* Whether there would be enough without the n other sequences of `without`. */
bool oe_cells_can_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *without,
                        int64_t n);

/* Carries out a plan that was made of the table as it is. */
void oe_cells_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *target);

/* -- debugging -- */

/* What is wrong with the table, or NULL; -1 or the sequence that it is about in *sequence. */
const char *oe_cells_fault(oe_cells *cells, int32_t *sequence);

#ifdef __cplusplus
}
#endif

#endif
