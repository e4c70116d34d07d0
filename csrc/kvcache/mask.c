#include "kvcache/mask.h"

#include <string.h>

#include "base/target_clones.h"
#include "kvcache/cells_table.h"

#define SEEN ((uint16_t)0x0000)   /* f16 0 */
#define PIECE 64                  /* cells that are compared at once */
#define HIDDEN ((uint16_t)0xfc00) /* f16 minus infinity */

OE_TARGET_CLONES
static void fill(uint16_t *restrict mask, int32_t n, uint16_t value) {
    for (int32_t i = 0; i < n; i++) {
        mask[i] = value;
    }
}

/* One row of the mask, and the part [from, to) of its sequence's list that it sees. */
typedef struct row {
    uint16_t *mask; /* for the cells [begin, end) */
    int32_t begin, end;
    int32_t from, to;
} row;

static void write_run(const row *r, int32_t cell, int32_t n, uint16_t value) {
    const int32_t low = cell > r->begin ? cell : r->begin, high = cell + n < r->end ? cell + n : r->end;
    if (low < high) {
        fill(r->mask + (low - r->begin), high - low, value);
    }
}

static void write_each(const row *r, const int32_t *cell, int32_t n, uint16_t value) {
    const uint32_t width = (uint32_t)(r->end - r->begin);
    for (int32_t i = 0; i < n; i++) {
        const uint32_t at = (uint32_t)(cell[i] - r->begin);
        if (at < width) {
            r->mask[at] = value;
        }
    }
}

static bool is_run(const oe_sequence *s, int32_t i, int32_t n) {
    return !s->descents && s->cell[i + n - 1] - s->cell[i] == n - 1;
}

/* Writes `value` for the cells s->cell[i..j), run by run: they are mostly one run, or a few. */
static void write(const row *r, const oe_sequence *s, int32_t i, int32_t j, uint16_t value) {
    while (i < j) {
        const int32_t left = j - i, n = left < PIECE || is_run(s, i, left) ? left : PIECE;
        if (is_run(s, i, n)) {
            write_run(r, s->cell[i], n, value);
        } else {
            write_each(r, s->cell + i, n, value);
        }
        i += n;
    }
}

/* Writes a whole row. */
static void write_first(const row *r, const oe_sequence *s) {
    if (r->from < r->to && is_run(s, r->from, r->to - r->from)) {
        const int32_t low = s->cell[r->from], high = s->cell[r->to - 1] + 1;
        write_run(r, r->begin, low - r->begin, HIDDEN);
        write_run(r, low, high - low, SEEN);
        write_run(r, high, r->end - high, HIDDEN);
        return;
    }
    fill(r->mask, r->end - r->begin, HIDDEN);
    write(r, s, r->from, r->to, SEEN);
}

/* Writes `value` for the part of [i, j) outside of [a, b). */
static void write_outside(const row *r, const oe_sequence *s, int32_t i, int32_t j, int32_t a, int32_t b,
                          uint16_t value) {
    if (a >= b) {
        write(r, s, i, j, value);
        return;
    }
    write(r, s, i, j < a ? j : a, value);
    write(r, s, i > b ? i : b, j, value);
}

void oe_mask_fill(const oe_cells *cells, int32_t begin, int32_t end, const int32_t *sequence, const int32_t *first,
                  const int32_t *last, int64_t n, uint16_t *mask) {
    if (begin == end) {
        return; /* a mask without columns may be NULL */
    }
    row before = {NULL, begin, end, 0, 0};
    for (int64_t i = 0; i < n; i++) {
        const oe_sequence *s = &cells->sequence[sequence[i]];
        row r = {mask + i * (end - begin), begin, end, s->begin, s->begin};
        if (first[i] <= last[i]) {
            r.from = oe_index(cells, s, first[i]);
            r.to = oe_index(cells, s, (int64_t)last[i] + 1);
        }
        if (i && sequence[i] == sequence[i - 1]) { /* copy the row before and write the difference, usually one token */
            memcpy(r.mask, before.mask, (size_t)(end - begin) * sizeof *mask);
            write_outside(&r, s, before.from, before.to, r.from, r.to, HIDDEN);
            write_outside(&r, s, r.from, r.to, before.from, before.to, SEEN);
        } else {
            write_first(&r, s);
        }
        before = r;
    }
}

void oe_mask_of_ranges(const int32_t *range, int64_t n, int32_t width, uint16_t *mask) {
    for (int64_t i = 0; i < n; i++, mask += width) {
        const int32_t begin = range[2 * i], end = range[2 * i + 1];
        fill(mask, begin, HIDDEN);
        fill(mask + begin, end - begin, SEEN);
        fill(mask + end, width - end, HIDDEN);
    }
}
