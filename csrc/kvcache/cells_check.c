#include <stddef.h>

#include "kvcache/cells_table.h"

static const char *fault_of_free(const oe_cells *cells) {
    const oe_bit_tree *free = &cells->free;
    for (int32_t c = 0; c < cells->n; c++) {
        if (oe_bitset_has(free->level[0], c) != (cells->n_owners[c] == 0)) {
            return "the free set has the free cells";
        }
    }
    for (int k = 1; k < OE_TREE_LEVELS; k++) {
        for (int32_t i = 0; i < free->words[k - 1]; i++) {
            if (oe_bitset_has(free->level[k], i) != (free->level[k - 1][i] != 0)) {
                return "levels of the free set agree";
            }
        }
    }
    return NULL;
}

static const char *fault_of_cells(const oe_cells *cells) {
    int32_t used = 0, shared = 0;
    for (int32_t c = 0; c < cells->n; c++) {
        if ((cells->position[c] >= 0) != (cells->n_owners[c] > 0) || cells->position[c] < OE_FREE) {
            return "used cells have positions, free cells have none";
        }
        if (cells->lost[c]) {
            return "nothing is left from a count";
        }
        used += cells->n_owners[c] > 0;
        shared += cells->n_owners[c] > 1;
    }
    return used != cells->n_used || shared != cells->n_shared ? "counts of used and shared cells" : NULL;
}

static const char *fault_of_sequence(const oe_cells *cells, const oe_sequence *s) {
    int32_t descents = 0;
    if (!(0 <= s->begin && s->begin <= s->end && s->end <= s->room)) {
        return "the bounds of its list";
    }
    for (int32_t i = s->begin; i < s->end; i++) {
        if (s->cell[i] < 0 || s->cell[i] >= cells->n || cells->position[s->cell[i]] < 0) {
            return "its cells are used ones";
        }
        if (i > s->begin && cells->position[s->cell[i - 1]] >= cells->position[s->cell[i]]) {
            return "each position once, in order";
        }
        descents += i > s->begin && s->cell[i] < s->cell[i - 1];
    }
    if (descents != s->descents) {
        return "how often its cells descend";
    }
    if (!s->advanced && oe_count(s) && oe_first(cells, s) < oe_kept_from(&cells->reach, s->next)) {
        return "what no later token sees is known";
    }
    return oe_count(s) && s->next != (int64_t)oe_last(cells, s) + 1 ? "where it goes on" : NULL;
}

static const char *fault_of_advanced(const oe_cells *cells) {
    int32_t n = 0;
    for (int32_t s = 0; s < cells->n_sequences; s++) {
        n += cells->sequence[s].advanced;
    }
    for (int32_t k = 0; k < cells->n_advanced; k++) {
        n -= cells->sequence[cells->advanced[k]].advanced;
    }
    return n ? "those that advanced are listed" : NULL;
}

/* Counts the owners of cells from the lists of the sequences. */
static const char *fault_of_owners(oe_cells *cells) {
    const char *fault = NULL;
    for (int32_t s = 0; s < cells->n_sequences; s++) {
        const oe_sequence *mine = &cells->sequence[s];
        for (int32_t i = mine->begin; i < mine->end; i++) {
            cells->lost[mine->cell[i]]++;
        }
    }
    for (int32_t c = 0; c < cells->n; c++) {
        fault = cells->lost[c] == cells->n_owners[c] ? fault : "both sides of the table agree";
        cells->lost[c] = 0;
    }
    return fault;
}

const char *oe_cells_fault(oe_cells *cells, int32_t *sequence) {
    const char *fault = fault_of_cells(cells);
    *sequence = -1;
    fault = fault ? fault : fault_of_free(cells);
    fault = fault ? fault : fault_of_advanced(cells);
    for (int32_t s = 0; !fault && s < cells->n_sequences; s++) {
        fault = fault_of_sequence(cells, &cells->sequence[s]);
        *sequence = fault ? s : -1;
    }
    return fault ? fault : fault_of_owners(cells);
}
