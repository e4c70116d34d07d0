#include "kvcache/cells_table.h"

#include <stdlib.h>
#include <string.h>

int32_t oe_index(const oe_cells *cells, const oe_sequence *s, int64_t position) {
    int32_t low = s->begin, high = s->end;
    if (low == high || position <= oe_first(cells, s)) {
        return low;
    }
    if (position > oe_last(cells, s)) {
        return high;
    }
    if (oe_last(cells, s) - oe_first(cells, s) == high - low - 1) { /* no gaps: the index follows from the position */
        return low + (int32_t)(position - oe_first(cells, s));
    }
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (cells->position[s->cell[middle]] < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool oe_list_grow(oe_sequence *s, int32_t n) {
    const int64_t count = oe_count(s), needed = count + n;
    if (needed <= s->room / 2) { /* a window left free space in front: move the rest there, which is rare */
        memmove(s->cell, s->cell + s->begin, (size_t)count * sizeof *s->cell);
    } else {
        const int64_t room = needed + needed / 2 + 8;
        int32_t *cell = malloc((size_t)room * sizeof *cell);
        if (!cell) {
            return false;
        }
        if (count) {
            memcpy(cell, s->cell + s->begin, (size_t)count * sizeof *cell);
        }
        free(s->cell);
        s->cell = cell;
        s->room = (int32_t)room;
    }
    s->begin = 0;
    s->end = (int32_t)count;
    return true;
}

void oe_list_shrink(oe_sequence *s) {
    const int32_t count = oe_count(s);
    if (count == 0) {
        free(s->cell);
        s->cell = NULL;
        s->room = s->begin = s->end = 0;
    } else if (count < s->room / 4) {
        memmove(s->cell, s->cell + s->begin, (size_t)count * sizeof *s->cell);
        int32_t *cell = realloc(s->cell, 2 * (size_t)count * sizeof *cell);
        s->room = cell ? 2 * count : s->room;
        s->cell = cell ? cell : s->cell;
        s->begin = 0;
        s->end = count;
    }
}

/* Descents among the cells in [i, j), each compared with the cell before it. */
static int32_t descents(const oe_sequence *s, int32_t i, int32_t j) {
    int32_t found = 0;
    for (int32_t k = i > s->begin ? i : s->begin + 1; k < j && k < s->end; k++) {
        found += s->cell[k] < s->cell[k - 1];
    }
    return found;
}

void oe_list_settle(oe_sequence *s) { s->descents = descents(s, s->begin, s->end); }

void oe_list_insert(const oe_cells *cells, oe_sequence *s, int32_t cell) {
    const int32_t at = oe_index(cells, s, cells->position[cell]);
    if (at < s->end) {
        s->descents -= descents(s, at, at + 1);
        memmove(s->cell + at + 1, s->cell + at, (size_t)(s->end - at) * sizeof *s->cell);
    }
    s->cell[at] = cell;
    s->end++;
    s->descents += descents(s, at, at + 2);
}

void oe_list_drop(oe_cells *cells, oe_sequence *s, int32_t i, int32_t j) {
    if (i == j) {
        return;
    }
    s->descents -= descents(s, i, j + 1);
    for (int32_t k = i; k < j; k++) {
        oe_drop_owner(cells, s->cell[k]);
    }
    if (i == s->begin) {
        s->begin = j;
    } else {
        memmove(s->cell + i, s->cell + j, (size_t)(s->end - j) * sizeof *s->cell);
        s->end -= j - i;
        s->descents += descents(s, i, i + 1);
    }
    if (s->begin == s->end) {
        s->begin = s->end = 0;
    }
}
