#include "cells.h"

#include <stdlib.h>
#include <string.h>

/* -- the table and what is derived from it ------------------------------------------------------------------------- */

static bool create_tree(oe_bit_tree *tree, int32_t n) {
    bool made = true;
    for (int k = 0; k < OE_TREE_LEVELS; k++) {
        tree->words[k] = n = oe_bits_words(n);
        tree->level[k] = calloc((size_t)n, sizeof(uint64_t));
        made = made && tree->level[k];
    }
    return made;
}

oe_cells *oe_cells_create(int32_t n) {
    oe_cells *cells = calloc(1, sizeof *cells);
    if (!cells) {
        return NULL;
    }
    cells->n = n;
    cells->words = oe_bits_words(n);
    const size_t whole = (size_t)cells->words * 64; /* masks read and write whole words of cells */
    cells->position = malloc(whole * sizeof *cells->position);
    cells->owners = calloc((size_t)n, sizeof *cells->owners);
    cells->mine = calloc((size_t)cells->words * OE_SEQUENCES, sizeof *cells->mine);
    cells->scratch = malloc(whole * sizeof *cells->scratch);
    if (!create_tree(&cells->free, n) || !cells->position || !cells->owners || !cells->mine || !cells->scratch) {
        oe_cells_destroy(cells);
        return NULL;
    }
    for (size_t c = 0; c < whole; c++) {
        cells->position[c] = OE_FREE;
    }
    for (int32_t c = 0; c < n; c++) {
        oe_tree_add(&cells->free, c);
    }
    return cells;
}

void oe_cells_destroy(oe_cells *cells) {
    if (cells) {
        for (int k = 0; k < OE_TREE_LEVELS; k++) {
            free(cells->free.level[k]);
        }
        free(cells->position);
        free(cells->owners);
        free(cells->mine);
        free(cells->scratch);
        free(cells);
    }
}

static inline bool is_shared(uint64_t owners) { return (owners & (owners - 1)) != 0; }

static inline int32_t next_mine(const oe_cells *cells, int32_t s, int32_t cell) {
    return oe_bits_next(oe_cells_mine(cells, s), cells->words, cell);
}

/* for (each cell of sequence s, ascending); the body may take s out of `cell`. */
#define EACH_CELL(cells, s, cell)                                                                                      \
    int32_t cell = (cells)->sequence[s].count ? (cells)->sequence[s].lowest : -1;                                      \
    cell >= 0;                                                                                                         \
    cell = next_mine(cells, s, cell + 1)

/* Adds a sequence to a cell that has its position. */
static void attach(oe_cells *cells, int32_t s, int32_t cell) {
    oe_sequence *one = &cells->sequence[s];
    const int32_t position = cells->position[cell];
    const uint64_t before = cells->owners[cell];
    cells->owners[cell] |= (uint64_t)1 << s;
    cells->n_shared += before && !is_shared(before);
    oe_bits_add(cells->mine + (int64_t)s * cells->words, cell);
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
static void occupy(oe_cells *cells, int32_t cell, int32_t position) {
    cells->position[cell] = position;
    oe_tree_drop(&cells->free, cell);
    cells->n_used++;
    cells->extent = cell >= cells->extent ? cell + 1 : cells->extent;
}

/* Takes a sequence out of a cell. Its bounds are wrong until `settle_cells` and, for positions, the caller see to it,
 * the extent until `settle_extent`. */
static void detach(oe_cells *cells, int32_t s, int32_t cell) {
    const uint64_t before = cells->owners[cell], after = before & ~((uint64_t)1 << s);
    cells->owners[cell] = after;
    cells->n_shared -= is_shared(before) && !is_shared(after);
    oe_bits_drop(cells->mine + (int64_t)s * cells->words, cell);
    cells->sequence[s].count--;
    if (!after) {
        cells->position[cell] = OE_FREE;
        oe_tree_add(&cells->free, cell);
        cells->n_used--;
    }
}

static void settle_cells(oe_cells *cells, int32_t s) {
    oe_sequence *one = &cells->sequence[s];
    if (one->count) {
        one->lowest = next_mine(cells, s, one->lowest);
        one->highest = oe_bits_previous(oe_cells_mine(cells, s), one->highest);
    }
}

static void settle_positions(oe_cells *cells, int32_t s) {
    oe_sequence *one = &cells->sequence[s];
    one->first = INT32_MAX;
    one->last = -1;
    for (EACH_CELL(cells, s, cell)) {
        const int32_t position = cells->position[cell];
        one->last = position > one->last ? position : one->last;
        if (position <= one->first) {
            one->first = position;
            one->first_cell = cell;
        }
    }
}

/* The highest used cell up to `cell`, or -1. */
static int32_t previous_used(const oe_cells *cells, int32_t cell) {
    while (cell >= 0 && !cells->owners[cell]) {
        const int32_t w = cell >> 6;
        /* Bits behind the last cell are not set: they count as used, and lie above `cell`. */
        const uint64_t used = ~cells->free.level[0][w] & ~(uint64_t)0 >> (63 - (cell & 63));
        cell = used ? (w << 6) + oe_bits_highest(used) : (w << 6) - 1;
    }
    return cell;
}

static void settle_extent(oe_cells *cells) { cells->extent = previous_used(cells, cells->extent - 1) + 1; }

static void settle_next(oe_cells *cells, int32_t s) {
    oe_sequence *one = &cells->sequence[s];
    one->next = one->count ? (int64_t)one->last + 1 : 0;
}

/* -- one step ------------------------------------------------------------------------------------------------------ */

bool oe_cells_find(oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *found) {
    int32_t above[OE_SEQUENCES];
    if (n > cells->n - cells->n_used) {
        return false;
    }
    for (int s = 0; s < OE_SEQUENCES; s++) {
        above[s] = cells->sequence[s].count ? cells->sequence[s].highest + 1 : 0;
    }
    for (int64_t i = 0; i < n; i++) { /* taken for the moment, so that no two tokens get one cell */
        const int32_t s = sequence[i];
        int32_t cell = oe_tree_next(&cells->free, above[s]);
        if (cell < 0) {
            cell = oe_tree_next(&cells->free, 0);
        }
        above[s] = cell >= above[s] ? cell + 1 : above[s];
        oe_tree_drop(&cells->free, cell);
        found[i] = cell;
    }
    for (int64_t i = 0; i < n; i++) {
        oe_tree_add(&cells->free, found[i]);
    }
    return true;
}

/* Takes cells out of the free ones; none when one of them is not free or named twice. */
static bool claim(oe_cells *cells, const int32_t *where, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!oe_bits_has(cells->free.level[0], where[i])) {
            while (i-- > 0) {
                oe_tree_add(&cells->free, where[i]);
            }
            return false;
        }
        oe_tree_drop(&cells->free, where[i]);
    }
    return true;
}

bool oe_cells_place(oe_cells *cells, const int32_t *where, const int32_t *position, const int32_t *sequence, int64_t n) {
    if (!claim(cells, where, n)) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        occupy(cells, where[i], position[i]);
        attach(cells, sequence[i], where[i]);
        settle_next(cells, sequence[i]);
    }
    return true;
}

void oe_cells_span(const oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *begin, int32_t *end) {
    int32_t low = cells->n, high = 0;
    for (int64_t i = 0; i < n; i++) {
        const oe_sequence *one = &cells->sequence[sequence[i]];
        if (one->count) {
            low = one->lowest < low ? one->lowest : low;
            high = one->highest >= high ? one->highest + 1 : high;
        }
    }
    *begin = low < high ? low : 0;
    *end = high;
}

void oe_cells_next(const oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n, int64_t *next) {
    uint64_t seen = 0;
    for (int s = 0; s < OE_SEQUENCES; s++) {
        next[s] = cells->sequence[s].next;
    }
    for (int64_t i = 0; i < n; i++) {
        const int32_t s = sequence[i];
        const bool again = seen >> s & 1;
        next[s] = again && next[s] < position[i] ? next[s] : position[i];
        seen |= (uint64_t)1 << s;
    }
}

/* Calls visit(cells, sequence, cell, context) for the cells of a sequence with positions below `end`; visit may take
 * the sequence out of the cell. Cells mostly ascend with positions, from `first_cell` on and round the end of the table:
 * then the walk ends with them, and returns the cell of the lowest position that is left. -1 when it is not known. */
typedef void visitor(oe_cells *cells, int32_t s, int32_t cell, void *context);

static int32_t visit_below(oe_cells *cells, int32_t s, int64_t end, visitor *visit, void *context) {
    const oe_sequence before = cells->sequence[s];
    int32_t cell = before.first_cell;
    int64_t position = before.first;
    while (position < end) {
        int32_t next = cell < before.highest ? next_mine(cells, s, cell + 1) : -1;
        next = next < 0 ? next_mine(cells, s, before.lowest) : next;
        const bool ascends = cells->position[next] == position + 1;
        visit(cells, s, cell, context);
        position++;
        if (!ascends) {
            break;
        }
        cell = next;
    }
    if (position >= end && cells->position[cell] == position && oe_bits_has(oe_cells_mine(cells, s), cell)) {
        return cell;
    }
    for (cell = next_mine(cells, s, before.lowest); cell >= 0 && position < end; cell = next_mine(cells, s, cell + 1)) {
        if (cells->position[cell] >= position && cells->position[cell] < end) {
            visit(cells, s, cell, context);
        }
    }
    return -1;
}

static void drop_one(oe_cells *cells, int32_t s, int32_t cell, void *context) {
    (void)context;
    detach(cells, s, cell);
}

void oe_cells_drop_below(oe_cells *cells, const int64_t *ends) {
    for (int32_t s = 0; s < OE_SEQUENCES; s++) {
        oe_sequence *one = &cells->sequence[s];
        if (one->count == 0 || one->first >= ends[s]) {
            continue;
        }
        const int32_t left = visit_below(cells, s, ends[s], drop_one, NULL);
        settle_cells(cells, s);
        if (left >= 0) {
            one->first_cell = left;
            one->first = cells->position[left];
        } else {
            settle_positions(cells, s);
        }
    }
    settle_extent(cells);
}

/* What is counted of cells that would lose owners; one with several of them is looked at once. */
typedef struct losses {
    const int64_t *ends;
    uint64_t droppers; /* sequences that drop anything */
    int32_t freed, unshared;
} losses;

static uint64_t owners_left(const oe_cells *cells, int32_t cell, const losses *lost) {
    uint64_t left = cells->owners[cell];
    for (uint64_t among = left & lost->droppers; among; among &= among - 1) {
        const int32_t s = oe_bits_lowest(among);
        if (cells->position[cell] < lost->ends[s]) {
            left &= ~((uint64_t)1 << s);
        }
    }
    return left;
}

static void count_one(oe_cells *cells, int32_t s, int32_t cell, void *context) {
    losses *lost = context;
    const uint64_t before = cells->owners[cell], left = owners_left(cells, cell, lost);
    if (oe_bits_lowest(before & ~left) == s) {
        lost->freed += left == 0;
        lost->unshared += is_shared(before) && !is_shared(left);
    }
}

static losses losses_of(const oe_cells *cells, const int64_t *ends) {
    losses lost = {ends, 0, 0, 0};
    for (int32_t s = 0; s < OE_SEQUENCES; s++) {
        if (cells->sequence[s].count && cells->sequence[s].first < ends[s]) {
            lost.droppers |= (uint64_t)1 << s;
        }
    }
    for (uint64_t among = lost.droppers; among; among &= among - 1) {
        const int32_t s = oe_bits_lowest(among);
        visit_below((oe_cells *)cells, s, ends[s], count_one, &lost); /* count_one changes nothing */
    }
    return lost;
}

int32_t oe_cells_free_without(const oe_cells *cells, const int64_t *ends) {
    return cells->n - cells->n_used + losses_of(cells, ends).freed;
}

oe_cells_usage oe_cells_usage_without(const oe_cells *cells, const int64_t *ends) {
    const losses lost = losses_of(cells, ends);
    int32_t top = cells->extent - 1;
    while (top >= 0 && !owners_left(cells, top, &lost)) {
        top = previous_used(cells, top - 1);
    }
    return (oe_cells_usage){cells->n_used - lost.freed, cells->n_shared - lost.unshared, top + 1};
}

/* -- one request --------------------------------------------------------------------------------------------------- */

bool oe_cells_has_all(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) {
    const oe_sequence *one = &cells->sequence[sequence];
    if (end <= begin) {
        return true;
    }
    if (one->count == 0 || begin < one->first || end > (int64_t)one->last + 1) {
        return false;
    }
    if (one->count == (int64_t)one->last - one->first + 1) { /* each position once: there is no gap */
        return true;
    }
    int64_t there = 0;
    for (EACH_CELL(cells, sequence, cell)) {
        there += cells->position[cell] >= begin && cells->position[cell] < end;
    }
    return there == end - begin;
}

int32_t oe_cells_share(oe_cells *cells, int32_t source, int32_t target, int64_t end) {
    if (cells->sequence[target].count) {
        return -1;
    }
    for (EACH_CELL(cells, source, cell)) {
        if (cells->position[cell] < end) {
            attach(cells, target, cell);
        }
    }
    settle_next(cells, target);
    return cells->sequence[target].count;
}

int32_t oe_cells_remove(oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) {
    const int32_t before = cells->sequence[sequence].count;
    for (EACH_CELL(cells, sequence, cell)) {
        if (cells->position[cell] >= begin && cells->position[cell] < end) {
            detach(cells, sequence, cell);
        }
    }
    if (before != cells->sequence[sequence].count) {
        settle_cells(cells, sequence);
        settle_positions(cells, sequence);
        settle_extent(cells);
    }
    settle_next(cells, sequence);
    return before - cells->sequence[sequence].count;
}

void oe_cells_put(oe_cells *cells, int32_t cell, int32_t position, uint64_t owners) {
    occupy(cells, cell, position);
    for (; owners; owners &= owners - 1) {
        const int32_t s = oe_bits_lowest(owners);
        attach(cells, s, cell);
        settle_next(cells, s);
    }
}

/* -- moving -------------------------------------------------------------------------------------------------------- */

/* Cells of word w that are free, or will be when the sequence has lost its positions from begin to before end. */
static uint64_t free_by_then(const oe_cells *cells, int32_t w, int32_t sequence, int64_t begin, int64_t end) {
    uint64_t found = cells->free.level[0][w];
    for (uint64_t mine = oe_cells_mine(cells, sequence)[w]; mine; mine &= mine - 1) {
        const int32_t cell = (w << 6) + oe_bits_lowest(mine);
        if (cells->position[cell] >= begin && cells->position[cell] < end && !is_shared(cells->owners[cell])) {
            found |= mine & -mine;
        }
    }
    return found;
}

int32_t oe_cells_shift_plan(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, int32_t *source,
                            int32_t *target) {
    int32_t n = 0, filled;
    for (EACH_CELL(cells, sequence, cell)) {
        if (cells->position[cell] >= begin + discard && !is_shared(cells->owners[cell])) {
            source[n] = target[n] = cell;
            n++;
        }
    }
    filled = n;
    for (EACH_CELL(cells, sequence, cell)) {
        if (cells->position[cell] >= begin + discard && is_shared(cells->owners[cell])) {
            source[n++] = cell;
        }
    }
    for (int32_t w = 0; w < cells->words && filled < n; w++) {
        uint64_t found = free_by_then(cells, w, sequence, begin, begin + discard);
        for (; found && filled < n; found &= found - 1) {
            target[filled++] = (w << 6) + oe_bits_lowest(found);
        }
    }
    return filled < n ? -1 : n;
}

void oe_cells_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *source,
                    const int32_t *target, int32_t n) {
    oe_cells_remove(cells, sequence, begin, begin + discard);
    for (int32_t i = 0; i < n; i++) {
        const int32_t position = cells->position[source[i]] - (int32_t)discard;
        if (source[i] == target[i]) {
            cells->position[target[i]] = position;
            continue;
        }
        detach(cells, sequence, source[i]); /* others have it */
        occupy(cells, target[i], position);
        attach(cells, sequence, target[i]);
    }
    settle_cells(cells, sequence);
    settle_positions(cells, sequence);
    settle_next(cells, sequence);
}

int32_t oe_cells_defrag_plan(const oe_cells *cells, int32_t *source, int32_t *target) {
    int32_t n = 0, top = cells->extent - 1;
    for (int32_t hole = oe_tree_next(&cells->free, 0); hole >= 0 && hole < cells->n_used;
         hole = oe_tree_next(&cells->free, hole + 1)) {
        source[n] = top;
        target[n++] = hole;
        top = previous_used(cells, top - 1);
    }
    return n;
}

static void move_one(oe_cells *cells, int32_t source, int32_t target) {
    const uint64_t owners = cells->owners[source];
    occupy(cells, target, cells->position[source]);
    for (uint64_t left = owners; left; left &= left - 1) {
        const int32_t s = oe_bits_lowest(left);
        oe_sequence *one = &cells->sequence[s];
        const bool first = one->first_cell == source;
        attach(cells, s, target); /* so that the sequence is never empty, and its positions stay right */
        detach(cells, s, source);
        one->first_cell = first ? target : one->first_cell;
        settle_cells(cells, s);
    }
    settle_extent(cells);
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

/* -- debugging ----------------------------------------------------------------------------------------------------- */

static const char *fault_of_cells(const oe_cells *cells) {
    int32_t used = 0, shared = 0, extent = 0;
    for (int32_t c = 0; c < cells->n; c++) {
        const uint64_t owners = cells->owners[c];
        if ((cells->position[c] >= 0) != (owners != 0) || cells->position[c] < OE_FREE) {
            return "used cells have positions, free cells have none";
        }
        if (oe_bits_has(cells->free.level[0], c) != !owners) {
            return "the free set has the free cells";
        }
        used += owners != 0;
        shared += is_shared(owners);
        extent = owners ? c + 1 : extent;
    }
    for (int k = 1; k < OE_TREE_LEVELS; k++) {
        for (int32_t i = 0; i < cells->free.words[k - 1]; i++) {
            if (oe_bits_has(cells->free.level[k], i) != (cells->free.level[k - 1][i] != 0)) {
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

/* `sorted` has room for all cells. */
static const char *fault_of_sequence(const oe_cells *cells, int32_t s, int32_t *sorted) {
    const oe_sequence *one = &cells->sequence[s];
    const uint64_t *mine = oe_cells_mine(cells, s);
    int32_t n = 0, lowest = -1, highest = -1;
    for (int32_t c = 0; c < cells->n; c++) {
        if (oe_bits_has(mine, c) != (cells->owners[c] >> s & 1)) {
            return "both sides of the table agree";
        }
        if (oe_bits_has(mine, c)) {
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
        !oe_bits_has(mine, one->first_cell) || cells->position[one->first_cell] != one->first) {
        return "bounds";
    }
    return one->next != (int64_t)one->last + 1 ? "where it goes on" : NULL;
}

const char *oe_cells_fault(const oe_cells *cells, int32_t *sequence) {
    const char *fault = fault_of_cells(cells);
    *sequence = -1;
    for (int32_t s = 0; !fault && s < OE_SEQUENCES; s++) {
        if (cells->sequence[s].count || oe_bits_next(oe_cells_mine(cells, s), cells->words, 0) >= 0) {
            *sequence = s;
            fault = fault_of_sequence(cells, s, cells->scratch);
        }
    }
    return fault;
}
