#include "sample/dry.h"

#include <stdlib.h>
#include <string.h>

/* -- history ------------------------------------------------------------------------------------------------------- */

void oe_dry_free(oe_dry *d) {
    free(d->history);
    free(d->length);
    d->history = d->length = NULL;
    d->n_history = d->capacity = d->length_capacity = 0;
}

static bool reserve(int32_t **array, int64_t *capacity, int64_t needed) {
    if (needed <= *capacity) {
        return true;
    }
    int32_t *grown = realloc(*array, (size_t)(2 * needed) * sizeof *grown);
    if (grown) {
        *array = grown;
        *capacity = 2 * needed;
    }
    return grown != NULL;
}

bool oe_dry_accept(oe_dry *d, const int32_t *tokens, int64_t n) {
    if (d->window > 0 && n > d->window) {
        tokens += n - d->window;
        n = d->window;
    }
    const int64_t kept = d->window < 0 || d->n_history < d->window ? d->n_history : d->window;
    if (d->n_history + n > d->capacity) {
        if (!reserve(&d->history, &d->capacity, kept + n)) {
            return false;
        }
        if (kept < d->n_history) { /* half of the room is free again: each token is moved about once */
            memmove(d->history, d->history + (d->n_history - kept), (size_t)kept * sizeof *d->history);
            d->n_history = kept;
        } else if (!reserve(&d->history, &d->capacity, d->n_history + n)) {
            return false;
        }
    }
    memcpy(d->history + d->n_history, tokens, (size_t)n * sizeof *tokens);
    d->n_history += n;
    return true;
}

bool oe_dry_follow(oe_dry *d, const oe_dry *from) {
    return from->n_history == 0 || oe_dry_accept(d, from->history, from->n_history);
}

/* -- breakers ------------------------------------------------------------------------------------------------------ */

bool oe_dry_is_breaker(const oe_dry *d, int32_t token) {
    return d->breakers.single && d->breakers.single[token / 32] >> token % 32 & 1;
}

/* How many tokens the longest breaker has that begins `back` tokens before the end (0: at the last one); 0 for none. */
static int64_t breaker_at(const oe_dry *d, const int32_t *end, int64_t back) {
    const oe_dry_breakers *b = &d->breakers;
    const int32_t token = end[-1 - back];
    int64_t longest = oe_dry_is_breaker(d, token);
    int32_t low = 0, high = b->n_sequences;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (b->first[middle] < token) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; low < b->n_sequences && b->first[low] == token; low++) {
        const int32_t *rest = b->rest + b->start[low];
        const int64_t n = b->start[low + 1] - b->start[low];
        if (n < back + 1 && n + 1 > longest && !memcmp(rest, end - back, (size_t)n * sizeof *rest)) {
            longest = n + 1;
        }
    }
    return longest;
}

/* How many tokens at the end of the n before `end` have no breaker among them: a repetition counts no further back. */
static int64_t unbroken(const oe_dry *d, const int32_t *end, int64_t n) {
    if (!d->breakers.single) {
        return n;
    }
    for (int64_t back = 0; back < n; back++) {
        const int64_t length = breaker_at(d, end, back);
        if (length) {
            return back + 1 - length;
        }
    }
    return n;
}

/* -- the scan ------------------------------------------------------------------------------------------------------ */

/* length[k] for 1 <= k < n: how many tokens before place n - k equal those at the end, at most `limit`.
 * The Z-algorithm on the reversed history (D. Gusfield, "Algorithms on Strings, Trees and Sequences", 1997, section
 * 1.3): [left, right) is the match seen that reaches furthest, and what lies in it is known from its counterpart at
 * the end. A length cut to the limit stays right: whatever it is compared with is cut too. */
static void match_suffix(const int32_t *end, int64_t n, int64_t limit, int32_t *length) {
    int64_t left = 0, right = 0;
    for (int64_t k = 1; k < n; k++) {
        int64_t z = 0;
        if (k < right) {
            const int64_t known = length[k - left], room = right - k;
            z = known < room ? known : room;
        }
        if (k + z >= right) {
            while (k + z < n && end[-1 - z] == end[-1 - z - k]) {
                z++;
            }
            if (k + z > right) {
                left = k;
                right = k + z;
            }
        }
        length[k] = (int32_t)(z < limit ? z : limit);
    }
}

int64_t oe_dry_scan(oe_dry *d) {
    const int64_t n = d->window < 0 || d->n_history < d->window ? d->n_history : d->window;
    const int32_t *end = d->history + d->n_history;
    if (n <= d->allowed) {
        return 0;
    }
    const int64_t limit = unbroken(d, end, n);
    if (limit < d->allowed) {
        return 0;
    }
    if (!reserve(&d->length, &d->length_capacity, n)) {
        return -1;
    }
    match_suffix(end, n, limit, d->length);
    return n - 1;
}

oe_dry_hit oe_dry_hit_at(const oe_dry *d, int64_t i) {
    const int32_t *end = d->history + d->n_history;
    const int32_t length = d->length[i + 1];
    return (oe_dry_hit){end[-1 - i], length >= d->allowed ? length : 0};
}
