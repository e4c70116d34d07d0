#include "kvcache/kv_indices.h"

#include <stdlib.h>
#include <string.h>

#include "kvcache/cells_table.h"

/* -- the cells of one sequence by position ------------------------------------------------------------------------- */

/* Room for `count` cells from order->begin on. */
static bool make_room(oe_order *order, int32_t count) {
    const int32_t known = order->end - order->begin;
    if ((int64_t)order->begin + count <= order->room) {
        return true;
    }
    if (order->begin && count <= order->room / 2) { /* a window goes round: rare enough to move what is left */
        memmove(order->cell, order->cell + order->begin, (size_t)known * sizeof *order->cell);
    } else {
        const int64_t room = 2 * (int64_t)count;
        int32_t *cell = malloc((size_t)room * sizeof *cell);
        if (!cell) {
            return false;
        }
        if (known) {
            memcpy(cell, order->cell + order->begin, (size_t)known * sizeof *cell);
        }
        free(order->cell);
        order->cell = cell;
        order->room = (int32_t)room;
    }
    order->begin = 0;
    order->end = known;
    return true;
}

/* Goes on from the last known cell while cells and positions ascend together. False when some are left. */
static bool extend(const oe_cells *cells, int32_t s, oe_order *order) {
    const int32_t all = order->begin + cells->sequence[s].count;
    int32_t cell = -1, position = -1;
    if (order->end > order->begin) {
        cell = order->cell[order->end - 1];
        position = cells->position[cell];
    }
    while (order->end < all) {
        cell = oe_next_mine(cells, s, cell + 1);
        if (cell < 0 || cells->position[cell] <= position) {
            return false;
        }
        position = cells->position[cell];
        order->cell[order->end++] = cell;
    }
    return true;
}

/* The end of the run from `at` on in which positions do not descend. */
static int32_t run_end(const int32_t *position, const int32_t *cell, int32_t at, int32_t n) {
    while (++at < n && position[cell[at]] >= position[cell[at - 1]]) {
    }
    return at;
}

static void merge(const int32_t *position, const int32_t *from, int32_t middle, int32_t end, int32_t *to) {
    for (int32_t left = 0, right = middle; left < middle || right < end;) {
        const bool take_left = right == end || (left < middle && position[from[left]] <= position[from[right]]);
        *to++ = from[take_left ? left++ : right++];
    }
}

/* Merges neighbouring runs until there is one: cells that went round the end of the table are two. */
static void sort_by_position(const int32_t *position, int32_t *cell, int32_t n, int32_t *scratch) {
    while (run_end(position, cell, 0, n) < n) {
        for (int32_t begin = 0; begin < n;) {
            const int32_t middle = run_end(position, cell, begin, n);
            const int32_t end = middle < n ? run_end(position, cell, middle, n) : n;
            merge(position, cell + begin, middle - begin, end - begin, scratch + begin);
            begin = end;
        }
        memcpy(cell, scratch, (size_t)n * sizeof *cell);
    }
}

static void collect(const oe_cells *cells, int32_t s, oe_order *order) {
    order->begin = order->end = 0;
    for (OE_EACH_CELL(cells, s, cell)) {
        order->cell[order->end++] = cell;
    }
    sort_by_position(cells->position, order->cell, order->end, cells->scratch);
}

/* All cells of a sequence, known from now on. NULL when there is no memory. */
static const oe_order *order_of(oe_cells *cells, int32_t s) {
    oe_order *order = &cells->order[s];
    if (!make_room(order, cells->sequence[s].count)) {
        return NULL;
    }
    if (!extend(cells, s, order)) {
        collect(cells, s, order);
    }
    return order;
}

/* How many of n cells have positions below `position`. */
static int32_t n_below(const int32_t *positions, const int32_t *cell, int32_t n, int64_t position) {
    int32_t low = 0, high = n;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (positions[cell[middle]] < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

int64_t oe_kv_indices_length(const oe_cells *cells, const int32_t *sequence, int64_t n) {
    uint64_t seen = 0;
    int64_t length = 0;
    for (int64_t i = 0; i < n; i++) {
        length += seen >> sequence[i] & 1 ? 0 : cells->sequence[sequence[i]].count;
        seen |= (uint64_t)1 << sequence[i];
    }
    return length;
}

/* The part of a sequence's list, which begins at `at`, that shows first <= position <= last. */
static void cut(const oe_cells *cells, int32_t s, const int32_t *list, int32_t at, int32_t first, int32_t last,
                int32_t *part) {
    const oe_sequence *one = &cells->sequence[s];
    const int32_t *mine = list + at;
    part[0] = at + (first <= one->first ? 0 : n_below(cells->position, mine, one->count, first));
    part[1] = at + (last >= one->last ? one->count : n_below(cells->position, mine, one->count, (int64_t)last + 1));
}

int64_t oe_kv_indices_fill(oe_cells *cells, const int32_t *sequence, const int32_t *first, const int32_t *last,
                           int64_t n,
                      int32_t *part, int32_t *list) {
    int32_t at[OE_SEQUENCES], length = 0;
    uint64_t seen = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t s = sequence[i], count = cells->sequence[s].count;
        if (!(seen >> s & 1)) {
            const oe_order *order = order_of(cells, s);
            if (!order) {
                return OE_KV_INDICES_NO_MEMORY;
            }
            if (count) {
                memcpy(list + length, order->cell + order->begin, (size_t)count * sizeof *list);
            }
            at[s] = length;
            length += count;
            seen |= (uint64_t)1 << s;
        }
        part[2 * i] = part[2 * i + 1] = 0;
        if (count && first[i] <= last[i]) {
            cut(cells, s, list, at[s], first[i], last[i], part + 2 * i);
        }
    }
    return length;
}
