/* The cell table of a key and value cache: which token lies in which row. Numbers only; the rows are elsewhere.
 *
 * A cell has a position and a count of the sequences that share it. A sequence has a list of its cells in the order of
 * their positions. So memory grows with the tokens held, not with cells times sequences, and the cost of a decoding
 * step depends neither on the number of cells nor on idle sequences.
 *
 * A table may know how far back tokens see (oe_reach). Then it frees cells that no later token sees when others need
 * them. Only a sequence that gained cells since the last oe_cells_slide can have such cells; the table lists those.
 *
 * Callers make sure that cells are 0..n-1, positions 0..2^31-1, and sequences below the n of oe_cells_hold; everything
 * else is checked here. Functions that take a `const oe_cells *` change nothing and may run in several threads. Use the
 * others from one thread at a time, except that oe_cells_usage may run while a mask or indices are filled. */
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

/* How far back a token sees. `window`: itself and the window - 1 tokens before it; `chunk`: positions from the last
 * multiple of `chunk` on; 0 and 0: all. `memory`: how many positions back a sequence can be resumed. Below 2^33. */
typedef struct oe_reach {
    int64_t window, chunk, memory;
} oe_reach;

typedef struct oe_sequence {
    int32_t *cell;      /* [room] */
    int32_t room;
    int32_t begin, end; /* the part of `cell` that holds its cells, in the order of positions */
    int32_t descents;   /* how many of these cells have a lower number than the cell before */
    int64_t next;       /* its last position + 1, also after that cell was freed; 0 at first */
    bool advanced;      /* it is listed in oe_cells.advanced */
    /* scratch of one call */
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
    int32_t *advanced;     /* [n_sequences] sequences that gained cells since oe_cells_slide */
    int32_t n_advanced;
    /* scratch of one call */
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

/* Makes sequences 0..n-1 valid arguments. False when there is no memory. */
bool oe_cells_hold(oe_cells *cells, int32_t n);

/* -- one step -- */

/* Whether the tokens of each sequence are in the order of their positions. */
bool oe_cells_in_order(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n);

/* Chooses cells for n tokens, each sequence's in order: the lowest free cell behind the last cell of its sequence (also
 * counting earlier tokens of the call), or else the lowest free cell. False when fewer than n cells are free. */
bool oe_cells_find(oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *found);

/* Gives n cells a position and a sequence each. Returns 1; or, with nothing changed, 0 where a cell is not free or a
 * sequence has a position already, and OE_NO_MEMORY. */
int oe_cells_place(oe_cells *cells, const int32_t *where, const int32_t *position, const int32_t *sequence, int64_t n);

/* The range [begin, end) that holds all cells of these sequences; 0 and 0 when they have none. */
void oe_cells_span(const oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *begin, int32_t *end);

/* -- cells that no later token sees -- */

/* Takes each sequence out of the cells that neither its rows among these n (not placed yet) nor later rows see. */
void oe_cells_slide(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n);

/* The number of free cells after oe_cells_slide with these arguments. */
int32_t oe_cells_room_for(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n);

/* The number of free cells after oe_cells_slide without rows, and after removing these n sequences. */
int32_t oe_cells_room(oe_cells *cells, const int32_t *sequence, int64_t n);

/* The cells in use after oe_cells_slide without rows. */
oe_cells_held oe_cells_usage(oe_cells *cells);

/* -- one sequence -- */

/* The index in s->cell of the first cell at `position` or later; s->end where there is none. */
int32_t oe_index(const oe_cells *cells, const oe_sequence *s, int64_t position);

/* Whether the sequence has every position in [begin, end). */
bool oe_cells_has_all(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t end);

/* Shares the cells of `source` with positions below `end` with `target`. Returns their number; -1 when `target` has
 * cells already; or OE_NO_MEMORY. */
int32_t oe_cells_share(oe_cells *cells, int32_t source, int32_t target, int64_t end);

/* Takes the sequence out of its cells with begin <= position < end. Returns their number. */
int32_t oe_cells_remove(oe_cells *cells, int32_t sequence, int64_t begin, int64_t end);

/* Plans a shift: the sequence loses `discard` positions from `begin` on, and later tokens move down. `source` and
 * `target` get the cells of those tokens in the order of positions. Cells of this sequence alone stay in place; shared
 * ones go to the lowest cells that are free by then. Both arrays have room for all cells of the sequence. Returns the
 * number of moves, or -1 when too few cells are free. */
int32_t oe_cells_shift_plan(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, int32_t *source,
                            int32_t *target);

/* Whether oe_cells_shift_plan would succeed after removing the n other sequences of `without`. */
bool oe_cells_can_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *without,
                        int64_t n);

/* Applies a plan that was made for the table as it is now. */
void oe_cells_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *target);

/* -- moving cells -- */

/* Plans the first `most` moves that close the gaps among the cells in [begin, end), from `begin` on. Cells keep their
 * order. Both arrays have room for `most`. Returns the number of moves. */
int32_t oe_cells_pack_plan(const oe_cells *cells, int32_t begin, int32_t end, int32_t most, int32_t *source,
                           int32_t *target);

/* Applies a plan that was made for the table as it is now. */
void oe_cells_pack(oe_cells *cells, const int32_t *source, const int32_t *target, int32_t n);

/* -- debugging -- */

/* Describes an inconsistency of the table, or returns NULL. *sequence gets the sequence concerned, or -1. */
const char *oe_cells_fault(oe_cells *cells, int32_t *sequence);

#ifdef __cplusplus
}
#endif

#endif
