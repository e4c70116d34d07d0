#include "kvcache/cells_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/target_clones.h"

static bool create_tree(oe_bit_tree *tree, int32_t n) {
    bool made = true;
    for (int k = 0; k < OE_TREE_LEVELS; k++) {
        tree->words[k] = n = oe_bitset_words(n);
        tree->level[k] = calloc((size_t)n, sizeof(uint64_t));
        made = made && tree->level[k];
    }
    return made;
}

oe_cells *oe_cells_create(int32_t n, oe_reach reach) {
    oe_cells *cells = calloc(1, sizeof *cells);
    if (!cells) {
        return NULL;
    }
    cells->n = n;
    cells->reach = reach;
    cells->position = malloc((size_t)n * sizeof *cells->position);
    cells->n_owners = calloc((size_t)n, sizeof *cells->n_owners);
    cells->lost = calloc((size_t)n, sizeof *cells->lost);
    if (!create_tree(&cells->free, n) || !cells->position || !cells->n_owners || !cells->lost) {
        oe_cells_destroy(cells);
        return NULL;
    }
    for (int32_t c = 0; c < n; c++) {
        cells->position[c] = OE_FREE;
        oe_tree_add(&cells->free, c);
    }
    return cells;
}

void oe_cells_destroy(oe_cells *cells) {
    if (cells) {
        for (int32_t s = 0; s < cells->n_sequences; s++) {
            free(cells->sequence[s].cell);
        }
        for (int k = 0; k < OE_TREE_LEVELS; k++) {
            free(cells->free.level[k]);
        }
        free(cells->position);
        free(cells->n_owners);
        free(cells->lost);
        free(cells->sequence);
        free(cells->advanced);
        free(cells->leaving);
        free(cells);
    }
}

bool oe_cells_hold(oe_cells *cells, int32_t n) {
    const int32_t had = cells->n_sequences, room = n > 2 * had ? n : 2 * had;
    if (n <= had) {
        return true;
    }
    int32_t *advanced = realloc(cells->advanced, (size_t)room * sizeof *advanced);
    cells->advanced = advanced ? advanced : cells->advanced;
    int32_t *leaving = realloc(cells->leaving, (size_t)room * sizeof *leaving);
    cells->leaving = leaving ? leaving : cells->leaving;
    oe_sequence *sequence = realloc(cells->sequence, (size_t)room * sizeof *sequence);
    cells->sequence = sequence ? sequence : cells->sequence;
    if (!advanced || !leaving || !sequence) {
        return false;
    }
    memset(sequence + had, 0, (size_t)(room - had) * sizeof *sequence);
    cells->n_sequences = room;
    return true;
}

/* -- one step ------------------------------------------------------------------------------------------------------ */

/* Whether this call sees the sequence for the first time. */
static inline bool is_met_first(const oe_cells *cells, oe_sequence *s) {
    const bool first = s->stamp != cells->stamp;
    s->stamp = cells->stamp;
    return first;
}

bool oe_cells_in_order(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) {
    cells->stamp++;
    for (int64_t i = 0; i < n; i++) {
        oe_sequence *s = &cells->sequence[sequence[i]];
        if (!is_met_first(cells, s) && position[i] <= s->mark) {
            return false;
        }
        s->mark = position[i];
    }
    return true;
}

bool oe_cells_find(oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *found) {
    if (n > cells->n - cells->n_used) {
        return false;
    }
    cells->stamp++;
    for (int64_t i = 0; i < n; i++) { /* taken temporarily, so that no two tokens get the same cell */
        oe_sequence *s = &cells->sequence[sequence[i]];
        if (is_met_first(cells, s)) {
            s->mark = oe_count(s) ? s->cell[s->end - 1] : -1;
        }
        const int32_t behind = oe_tree_next(&cells->free, (int32_t)s->mark + 1);
        s->mark = found[i] = behind >= 0 ? behind : oe_tree_next(&cells->free, 0);
        oe_tree_drop(&cells->free, found[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        oe_tree_add(&cells->free, found[i]);
    }
    return true;
}

/* Takes cells out of the free set; none of them when one is not free or is named twice. */
static bool claim_all(oe_cells *cells, const int32_t *where, int64_t n) {
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

/* Whether no sequence gets a position twice. A position behind the last one is new, which is the usual case. */
static bool are_new(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) {
    cells->stamp++;
    for (int64_t i = 0; i < n; i++) {
        oe_sequence *s = &cells->sequence[sequence[i]];
        if (is_met_first(cells, s)) {
            s->mark = oe_count(s) ? oe_last(cells, s) : -1;
        }
        if (position[i] > s->mark) {
            s->mark = position[i];
        } else if (oe_cells_has_all(cells, sequence[i], position[i], (int64_t)position[i] + 1) ||
                   is_among(position, sequence, i, i)) {
            return false;
        }
    }
    return true;
}

/* Makes room in each sequence's list for its tokens of a batch. */
static bool make_room_for(oe_cells *cells, const int32_t *sequence, int64_t n) {
    cells->stamp++;
    for (int64_t i = 0; i < n; i++) {
        oe_sequence *s = &cells->sequence[sequence[i]];
        s->mark = is_met_first(cells, s) ? 1 : s->mark + 1;
        if (!oe_list_make_room(s, (int32_t)s->mark)) {
            return false;
        }
    }
    return true;
}

int oe_cells_place(oe_cells *cells, const int32_t *where, const int32_t *position, const int32_t *sequence, int64_t n) {
    if (!are_new(cells, position, sequence, n) || !claim_all(cells, where, n)) {
        return 0;
    }
    if (!make_room_for(cells, sequence, n)) {
        for (int64_t i = 0; i < n; i++) {
            oe_tree_add(&cells->free, where[i]);
        }
        return OE_NO_MEMORY;
    }
    for (int64_t i = 0; i < n; i++) {
        oe_sequence *s = &cells->sequence[sequence[i]];
        oe_occupy(cells, where[i], position[i]);
        if (position[i] >= s->next || oe_count(s) == 0) {
            oe_list_append(s, where[i]);
            s->next = (int64_t)position[i] + 1;
        } else {
            oe_list_insert(cells, s, where[i]);
            oe_settle_next(cells, s);
        }
        oe_advance(cells, sequence[i]);
    }
    return 1;
}

OE_TARGET_CLONES
static void extremes(const int32_t *restrict cell, int32_t n, int32_t *lowest, int32_t *highest) {
    int32_t low = cell[0], high = cell[0];
    for (int32_t i = 1; i < n; i++) {
        low = cell[i] < low ? cell[i] : low;
        high = cell[i] > high ? cell[i] : high;
    }
    *lowest = low;
    *highest = high;
}

void oe_cells_span(const oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *begin, int32_t *end) {
    int32_t low = cells->n, high = -1;
    for (int64_t i = 0; i < n; i++) {
        const oe_sequence *s = &cells->sequence[sequence[i]];
        if (oe_count(s) == 0 || (i && sequence[i] == sequence[i - 1])) {
            continue;
        }
        int32_t lowest = s->cell[s->begin], highest = s->cell[s->end - 1];
        if (s->descents) {
            extremes(s->cell + s->begin, oe_count(s), &lowest, &highest);
        }
        low = lowest < low ? lowest : low;
        high = highest > high ? highest : high;
    }
    *begin = high < 0 ? 0 : low;
    *end = high + 1;
}

/* -- one sequence -------------------------------------------------------------------------------------------------- */

bool oe_cells_has_all(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) {
    const oe_sequence *s = &cells->sequence[sequence];
    return end <= begin || oe_index(cells, s, end) - oe_index(cells, s, begin) == end - begin;
}

int32_t oe_cells_share(oe_cells *cells, int32_t source, int32_t target, int64_t end) {
    const oe_sequence *from = &cells->sequence[source];
    oe_sequence *to = &cells->sequence[target];
    if (oe_count(to)) {
        return -1;
    }
    const int32_t n = oe_index(cells, from, end) - from->begin;
    if (!oe_list_make_room(to, n)) {
        return OE_NO_MEMORY;
    }
    for (int32_t i = 0; i < n; i++) {
        oe_add_owner(cells, to->cell[i] = from->cell[from->begin + i]);
    }
    to->end = n;
    oe_list_settle(to);
    oe_settle_next(cells, to);
    oe_advance(cells, target);
    return n;
}

int32_t oe_cells_remove(oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) {
    oe_sequence *s = &cells->sequence[sequence];
    const int32_t before = oe_count(s), i = oe_index(cells, s, begin);
    const int32_t j = end > begin ? oe_index(cells, s, end) : i;
    oe_list_drop(cells, s, i, j);
    oe_settle_next(cells, s);
    oe_list_shrink(s);
    return before - oe_count(s);
}
