#include "kvcache/kv_indices.h"

#include <string.h>

#include "kvcache/cells_table.h"

int64_t oe_kv_indices_length(oe_cells *cells, const int32_t *sequence, int64_t n) {
    int64_t length = 0;
    cells->stamp++;
    for (int64_t i = 0; i < n; i++) {
        oe_sequence *s = &cells->sequence[sequence[i]];
        length += s->stamp == cells->stamp ? 0 : oe_count(s);
        s->stamp = cells->stamp;
    }
    return length;
}

int64_t oe_kv_indices_fill(oe_cells *cells, const int32_t *sequence, const int32_t *first, const int32_t *last,
                           int64_t n, int32_t *range, int32_t *index) {
    int64_t length = 0;
    cells->stamp++;
    for (int64_t i = 0; i < n; i++) {
        oe_sequence *s = &cells->sequence[sequence[i]];
        if (s->stamp != cells->stamp) {
            s->stamp = cells->stamp;
            s->mark = length;
            if (oe_count(s)) {
                memcpy(index + length, s->cell + s->begin, (size_t)oe_count(s) * sizeof *index);
            }
            length += oe_count(s);
        }
        range[2 * i] = range[2 * i + 1] = 0;
        if (oe_count(s) && first[i] <= last[i]) {
            range[2 * i] = (int32_t)s->mark + oe_index(cells, s, first[i]) - s->begin;
            range[2 * i + 1] = (int32_t)s->mark + oe_index(cells, s, (int64_t)last[i] + 1) - s->begin;
        }
    }
    return length;
}
