/* A cursor over a GGUF header: reads nothing outside of the given bytes, and records the first fault with its place.
 *
 * Every function returns 0 for a fault, described in walk->fault, and 1 otherwise. */
#ifndef OE_GGUF_WALK_H
#define OE_GGUF_WALK_H

#include <string.h>

#include "gguf/gguf_check.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OE_GGUF_MAX_ITEMS ((uint64_t)1 << 30) /* ggml's own limit for strings and arrays */

typedef struct oe_gguf_walk {
    const uint8_t *data;
    uint64_t have, size, pos;
    struct oe_gguf_fault *fault;
} oe_gguf_walk;

static inline int oe_walk_fail(oe_gguf_walk *w, enum oe_gguf_status status, uint64_t offset, uint64_t got,
                               uint64_t want) {
    w->fault->status = status;
    w->fault->offset = offset;
    w->fault->got = got;
    w->fault->want = want;
    return 0;
}

static inline int oe_walk_need(oe_gguf_walk *w, uint64_t n) {
    const uint64_t left = w->size - w->pos;
    if (n > left) {
        return oe_walk_fail(w, OE_GGUF_TRUNCATED, w->pos, left, n);
    }
    if (n > OE_GGUF_MAX_HEADER || w->pos + n > OE_GGUF_MAX_HEADER) {
        return oe_walk_fail(w, OE_GGUF_HEADER_SIZE, w->pos, w->pos + n, OE_GGUF_MAX_HEADER);
    }
    if (w->pos + n > w->have) {
        return oe_walk_fail(w, OE_GGUF_NEED_MORE, w->pos, w->have, w->pos + n);
    }
    return 1;
}

static inline int oe_walk_bytes(oe_gguf_walk *w, void *to, size_t n) {
    if (!oe_walk_need(w, n)) {
        return 0;
    }
    memcpy(to, w->data + w->pos, n);
    w->pos += n;
    return 1;
}

static inline int oe_walk_u32(oe_gguf_walk *w, uint32_t *to) {
    return oe_walk_bytes(w, to, sizeof(*to));
}

static inline int oe_walk_u64(oe_gguf_walk *w, uint64_t *to) {
    return oe_walk_bytes(w, to, sizeof(*to));
}

static inline int oe_walk_string(oe_gguf_walk *w, const char **text, size_t *length) {
    const uint64_t at = w->pos;
    uint64_t n;
    if (!oe_walk_u64(w, &n)) {
        return 0;
    }
    if (n > w->size - w->pos || n > OE_GGUF_MAX_ITEMS) {
        return oe_walk_fail(w, OE_GGUF_STRING_LENGTH, at, n, w->size - w->pos);
    }
    if (!oe_walk_need(w, n)) {
        return 0;
    }
    *text = (const char *)w->data + w->pos;
    *length = (size_t)n;
    w->pos += n;
    return 1;
}

/* Reads a key or tensor name. Later faults are reported as faults of this item. */
static inline int oe_walk_name(oe_gguf_walk *w, const char **name, size_t *length) {
    const uint64_t at = w->pos;
    w->fault->name = NULL;
    if (!oe_walk_string(w, name, length)) {
        return 0;
    }
    if (*length == 0) {
        return oe_walk_fail(w, OE_GGUF_EMPTY_NAME, at, 0, 0);
    }
    w->fault->name = *name;
    w->fault->name_length = *length;
    if (memchr(*name, 0, *length)) {
        return oe_walk_fail(w, OE_GGUF_ZERO_IN_NAME, at, 0, 0);
    }
    return 1;
}

/* Checks that no two keys, and no two tensors, of the layout have the same name. */
int oe_gguf_check_names(oe_gguf_walk *walk, const struct oe_gguf_layout *layout);

#ifdef __cplusplus
}
#endif

#endif
