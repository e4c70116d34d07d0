#include "kvcache/cells_table.h"

int64_t oe_kept_from(const oe_reach *reach, int64_t next) {
    const int64_t back = next > reach->memory ? next - reach->memory : 0;
    if (reach->window) {
        return back >= reach->window ? back - (reach->window - 1) : 0;
    }
    return reach->chunk ? back - back % reach->chunk : 0;
}

/* -- what can be freed --------------------------------------------------------------------------------------------- */

oe_losses oe_weigh(oe_cells *cells, int32_t n) {
    oe_losses losses = {0, 0};
    for (int32_t k = 0; k < n; k++) {
        const oe_sequence *s = &cells->sequence[cells->leaving[k]];
        const int32_t end = oe_index(cells, s, s->below);
        for (int32_t i = s->begin; i < end; i++) {
            const int32_t cell = s->cell[i], left = cells->n_owners[cell] - ++cells->lost[cell];
            losses.freed += left == 0;
            losses.unshared += left == 1;
        }
    }
    return losses;
}

void oe_unweigh(oe_cells *cells, int32_t n) {
    for (int32_t k = 0; k < n; k++) {
        const oe_sequence *s = &cells->sequence[cells->leaving[k]];
        const int32_t end = oe_index(cells, s, s->below);
        for (int32_t i = s->begin; i < end; i++) {
            cells->lost[s->cell[i]] = 0;
        }
    }
}

int32_t oe_list_gone(oe_cells *cells, const int32_t *sequence, int64_t n) {
    int32_t listed = 0;
    cells->stamp++;
    for (int64_t i = 0; i < n; i++) {
        oe_sequence *s = &cells->sequence[sequence[i]];
        if (s->stamp != cells->stamp) {
            s->stamp = cells->stamp;
            s->below = INT64_MAX;
            cells->leaving[listed++] = sequence[i];
        }
    }
    return listed;
}

/* Appends the advanced sequences without this `stamp` to the `listed` ones in cells->leaving; returns the new count. */
static int32_t list_advanced(oe_cells *cells, int32_t listed, uint64_t stamp) {
    for (int32_t k = 0; k < cells->n_advanced; k++) {
        oe_sequence *s = &cells->sequence[cells->advanced[k]];
        if (s->stamp != stamp) {
            s->below = oe_kept_from(&cells->reach, s->next);
            cells->leaving[listed++] = cells->advanced[k];
        }
    }
    return listed;
}

/* Lists the sequences of these rows, which continue at their lowest new position, then the other advanced ones. */
static int32_t list_unseen(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) {
    int32_t listed = 0;
    if (!oe_is_limited(cells)) {
        return 0;
    }
    cells->stamp++;
    for (int64_t i = 0; i < n; i++) {
        oe_sequence *s = &cells->sequence[sequence[i]];
        if (s->stamp != cells->stamp) {
            s->stamp = cells->stamp;
            s->mark = position[i];
            cells->leaving[listed++] = sequence[i];
        }
        s->mark = position[i] < s->mark ? position[i] : s->mark;
    }
    for (int32_t k = 0; k < listed; k++) {
        oe_sequence *s = &cells->sequence[cells->leaving[k]];
        s->below = oe_kept_from(&cells->reach, s->mark);
    }
    return list_advanced(cells, listed, cells->stamp);
}

static int32_t n_free_without(oe_cells *cells, int32_t listed) {
    const oe_losses losses = oe_weigh(cells, listed);
    oe_unweigh(cells, listed);
    return cells->n - cells->n_used + losses.freed;
}

int32_t oe_cells_room_for(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) {
    return n_free_without(cells, list_unseen(cells, position, sequence, n));
}

int32_t oe_cells_room(oe_cells *cells, const int32_t *sequence, int64_t n) {
    const int32_t gone = oe_list_gone(cells, sequence, n);
    return n_free_without(cells, list_advanced(cells, gone, cells->stamp));
}

oe_cells_held oe_cells_usage(oe_cells *cells) {
    const int32_t listed = list_advanced(cells, 0, UINT64_MAX); /* no sequence has this stamp: lists all, writes none */
    const oe_losses losses = oe_weigh(cells, listed);
    oe_unweigh(cells, listed);
    return (oe_cells_held){cells->n_used - losses.freed, cells->n_shared - losses.unshared};
}

/* -- freeing ------------------------------------------------------------------------------------------------------- */

void oe_cells_slide(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) {
    const int32_t listed = list_unseen(cells, position, sequence, n);
    for (int32_t k = 0; k < listed; k++) {
        oe_sequence *s = &cells->sequence[cells->leaving[k]];
        oe_list_drop(cells, s, s->begin, oe_index(cells, s, s->below));
        s->advanced = false;
    }
    cells->n_advanced = 0;
    for (int64_t i = 0; i < n; i++) {
        oe_advance(cells, sequence[i]); /* rows before the end of their sequence keep more than its end would */
    }
}
