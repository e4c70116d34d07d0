/* Finds repeated names in a GGUF header. */
#include <stdlib.h>

#include "gguf/gguf_walk.h"

struct name {
    const char *text;
    size_t length;
    int64_t index;
};

static int compare_names(const void *a, const void *b) {
    const struct name *x = a, *y = b;
    int order;
    if (x->length != y->length) {
        return x->length < y->length ? -1 : 1;
    }
    order = memcmp(x->text, y->text, x->length);
    return order ? order : (x->index < y->index ? -1 : x->index > y->index);
}

/* Sorts `names` and reports a repeated one at its second place in the file. */
static int check_unique(oe_gguf_walk *w, struct name *names, int64_t n, enum oe_gguf_status status) {
    w->fault->what = status == OE_GGUF_DUPLICATE_KEY ? "a metadata key" : "a tensor name";
    qsort(names, (size_t)n, sizeof(*names), compare_names);
    for (int64_t i = 1; i < n; ++i) {
        const struct name *a = &names[i - 1], *b = &names[i];
        if (a->length == b->length && memcmp(a->text, b->text, a->length) == 0) {
            w->fault->index = b->index;
            w->fault->name = b->text;
            w->fault->name_length = b->length;
            return oe_walk_fail(w, status, (uint64_t)((const uint8_t *)b->text - w->data), (uint64_t)a->index, 0);
        }
    }
    return 1;
}

int oe_gguf_check_names(oe_gguf_walk *w, const struct oe_gguf_layout *layout) {
    const int64_t n = layout->n_kv > layout->n_tensors ? layout->n_kv : layout->n_tensors;
    struct name *names = malloc(((size_t)n + 1) * sizeof(*names));
    int ok;
    if (!names) {
        return oe_walk_fail(w, OE_GGUF_NO_MEMORY, 0, 0, 0);
    }
    for (int64_t i = 0; i < layout->n_kv; ++i) {
        names[i] = (struct name){layout->kv[i].name, layout->kv[i].name_length, i};
    }
    ok = check_unique(w, names, layout->n_kv, OE_GGUF_DUPLICATE_KEY);
    for (int64_t i = 0; ok && i < layout->n_tensors; ++i) {
        names[i] = (struct name){layout->tensors[i].name, layout->tensors[i].name_length, i};
    }
    ok = ok && check_unique(w, names, layout->n_tensors, OE_GGUF_DUPLICATE_TENSOR);
    free(names);
    return ok;
}
