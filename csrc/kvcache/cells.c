#include "kvcache/cells_table.h"

#include <stdlib.h>
#include <string.h>

static bool create_tree(oe_bit_tree *tree, int32_t n) {
    bool made = true;
    for (int k = 0; k < OE_TREE_LEVELS; k++) {
        tree->words[k] = n = oe_bitset_words(n);
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
    cells->words = oe_bitset_words(n);
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
        for (int s = 0; s < OE_SEQUENCES; s++) {
            free(cells->order[s].cell);
        }
        free(cells->position);
        free(cells->owners);
        free(cells->mine);
        free(cells->scratch);
        free(cells);
    }
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
        if (!oe_bitset_has(cells->free.level[0], where[i])) {
            while (i-- > 0) {
                oe_tree_add(&cells->free, where[i]);
            }
            return false;
        }
        oe_tree_drop(&cells->free, where[i]);
    }
    return true;
}

static bool is_among(const int32_t *position, const int32_t *sequence, int64_t n, int64_t i) {
    for (int64_t k = 0; k < n; k++) {
        if (position[k] == position[i] && sequence[k] == sequence[i]) {
            return true;
        }
    }
    return false;
}

/* Whether no sequence gets a position twice. Positions mostly go on behind the last one, and are new then. */
static bool are_new(const oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) {
    int64_t last[OE_SEQUENCES];
    for (int s = 0; s < OE_SEQUENCES; s++) {
        last[s] = cells->sequence[s].count ? cells->sequence[s].last : -1;
    }
    for (int64_t i = 0; i < n; i++) {
        const int32_t s = sequence[i];
        if (position[i] > last[s]) {
            last[s] = position[i];
        } else if (oe_cells_has_all(cells, s, position[i], (int64_t)position[i] + 1) ||
                   is_among(position, sequence, i, i)) {
            return false;
        }
    }
    return true;
}

bool oe_cells_place(oe_cells *cells, const int32_t *where, const int32_t *position, const int32_t *sequence,
                    int64_t n) {
    if (!are_new(cells, position, sequence, n) || !claim(cells, where, n)) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        oe_occupy(cells, where[i], position[i]);
        oe_attach(cells, sequence[i], where[i]);
        oe_settle_next(cells, sequence[i]);
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
 * the sequence out of the cell. Cells mostly ascend with positions, from `first_cell` on and round the end of the
 * table: then the walk ends with them, and returns the cell of the lowest position that is left. -1: not known. */
typedef void visitor(oe_cells *cells, int32_t s, int32_t cell, void *context);

static int32_t visit_below(oe_cells *cells, int32_t s, int64_t end, visitor *visit, void *context) {
    const oe_sequence before = cells->sequence[s];
    int32_t cell = before.first_cell;
    int64_t position = before.first;
    while (position < end) {
        int32_t next = cell < before.highest ? oe_next_mine(cells, s, cell + 1) : -1;
        next = next < 0 ? oe_next_mine(cells, s, before.lowest) : next;
        const bool ascends = cells->position[next] == position + 1;
        visit(cells, s, cell, context);
        position++;
        if (!ascends) {
            break;
        }
        cell = next;
    }
    if (position >= end && cells->position[cell] == position && oe_bitset_has(oe_cells_mine(cells, s), cell)) {
        return cell;
    }
    for (cell = oe_next_mine(cells, s, before.lowest); cell >= 0 && position < end;
         cell = oe_next_mine(cells, s, cell + 1)) {
        if (cells->position[cell] >= position && cells->position[cell] < end) {
            visit(cells, s, cell, context);
        }
    }
    return -1;
}

static void drop_one(oe_cells *cells, int32_t s, int32_t cell, void *context) {
    (void)context;
    oe_detach(cells, s, cell);
}

void oe_cells_drop_below(oe_cells *cells, const int64_t *ends) {
    for (int32_t s = 0; s < OE_SEQUENCES; s++) {
        oe_sequence *one = &cells->sequence[s];
        if (one->count == 0 || one->first >= ends[s]) {
            continue;
        }
        const int32_t left = visit_below(cells, s, ends[s], drop_one, NULL);
        oe_settle_cells(cells, s);
        if (left >= 0) {
            one->first_cell = left;
            one->first = cells->position[left];
        } else {
            oe_settle_positions(cells, s);
        }
    }
    oe_settle_extent(cells);
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
        const int32_t s = oe_bitset_lowest(among);
        if (cells->position[cell] < lost->ends[s]) {
            left &= ~((uint64_t)1 << s);
        }
    }
    return left;
}

static void count_one(oe_cells *cells, int32_t s, int32_t cell, void *context) {
    losses *lost = context;
    const uint64_t before = cells->owners[cell], left = owners_left(cells, cell, lost);
    if (oe_bitset_lowest(before & ~left) == s) {
        lost->freed += left == 0;
        lost->unshared += oe_is_shared(before) && !oe_is_shared(left);
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
        const int32_t s = oe_bitset_lowest(among);
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
        top = oe_previous_used(cells, top - 1);
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
    for (OE_EACH_CELL(cells, sequence, cell)) {
        there += cells->position[cell] >= begin && cells->position[cell] < end;
    }
    return there == end - begin;
}

int32_t oe_cells_share(oe_cells *cells, int32_t source, int32_t target, int64_t end) {
    if (cells->sequence[target].count) {
        return -1;
    }
    for (OE_EACH_CELL(cells, source, cell)) {
        if (cells->position[cell] < end) {
            oe_attach(cells, target, cell);
        }
    }
    oe_settle_next(cells, target);
    return cells->sequence[target].count;
}

int32_t oe_cells_remove(oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) {
    const int32_t before = cells->sequence[sequence].count;
    for (OE_EACH_CELL(cells, sequence, cell)) {
        if (cells->position[cell] >= begin && cells->position[cell] < end) {
            oe_detach(cells, sequence, cell);
        }
    }
    if (before != cells->sequence[sequence].count) {
        oe_settle_cells(cells, sequence);
        oe_settle_positions(cells, sequence);
        oe_settle_extent(cells);
    }
    oe_settle_next(cells, sequence);
    return before - cells->sequence[sequence].count;
}

void oe_cells_put(oe_cells *cells, int32_t cell, int32_t position, uint64_t owners) {
    oe_occupy(cells, cell, position);
    for (; owners; owners &= owners - 1) {
        const int32_t s = oe_bitset_lowest(owners);
        oe_attach(cells, s, cell);
        oe_settle_next(cells, s);
    }
}
