#include "tokenizer/spm.h"

#include <string.h>

int oe_spm_init(oe_spm *spm, int32_t n_vocab) {
    memset(spm, 0, sizeof *spm);
    memset(spm->bytes, 0xff, sizeof spm->bytes);
    spm->n_vocab = n_vocab;
    spm->unknown = -1;
    spm->ranks = calloc((size_t)n_vocab + 1, sizeof *spm->ranks);
    spm->unused = calloc((size_t)n_vocab + 1, 1);
    if (!spm->ranks || !spm->unused) {
        return -1;
    }
    return oe_text_map_init(&spm->texts, (uint32_t)n_vocab);
}

void oe_spm_free(oe_spm *spm) {
    oe_text_map_free(&spm->texts);
    free(spm->ranks);
    free(spm->unused);
    spm->ranks = NULL;
    spm->unused = NULL;
}

int oe_spm_put_piece(oe_spm *spm, const char *text, uint32_t length, int32_t id, uint32_t rank, int unused) {
    spm->ranks[id] = rank;
    spm->unused[id] = (uint8_t)unused;
    spm->any_unused |= unused;
    oe_spm_boundaries_add(&spm->boundaries, text, length);
    return oe_text_map_put(&spm->texts, text, length, id);
}

/* -- one encode call ----------------------------------------------------------------------------------------------- */

typedef struct {
    const oe_spm *spm;
    uint32_t     *left_lengths; /* per unused piece: how it was last found to split; NULL when there are none */
} session;

static int find_merge(const void *model, const char *text, const oe_symbol *left, const oe_symbol *right,
                      oe_merge *merge) {
    const session *s = model;
    int32_t id = oe_text_map_find(&s->spm->texts, text + left->start, left->length + right->length);
    if (id < 0) {
        return 0;
    }
    if (s->left_lengths && s->spm->unused[id]) {
        s->left_lengths[id] = left->length;
    }
    *merge = (oe_merge){s->spm->ranks[id], id};
    return 1;
}

static int emit_missing(const oe_spm *spm, const char *text, uint32_t size, int after_unknown, oe_id_list *ids) {
    for (uint32_t i = 0; i < size; ++i) {
        if (spm->bytes[(uint8_t)text[i]] < 0) {
            /* A run of missing characters is one unknown token. */
            return spm->unknown < 0 ? 1 + (uint8_t)text[i] : after_unknown ? 0 : oe_id_list_add(ids, spm->unknown);
        }
    }
    for (uint32_t i = 0; i < size; ++i) {
        if (oe_id_list_add(ids, spm->bytes[(uint8_t)text[i]]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* An unused piece is taken apart again, down to what it was made of. */
static int emit_piece(const session *s, const char *text, uint32_t size, int32_t id, oe_id_list *ids) {
    while (id >= 0 && s->left_lengths && s->left_lengths[id]) {
        uint32_t left = s->left_lengths[id];
        int status = emit_piece(s, text, left, oe_text_map_find(&s->spm->texts, text, left), ids);
        if (status != 0) {
            return status;
        }
        text += left;
        size -= left;
        id = oe_text_map_find(&s->spm->texts, text, size);
    }
    return id >= 0 ? oe_id_list_add(ids, id) : emit_missing(s->spm, text, size, 0, ids);
}

static int encode_chunk(const session *s, oe_scratch *scratch, const char *text, size_t size, oe_id_list *ids,
                        int *after_unknown) {
    scratch->symbols_size = 0;
    for (size_t i = 0; i < size;) {
        uint32_t length = oe_utf8_length(text + i, size - i);
        int32_t id = oe_text_map_find(&s->spm->texts, text + i, length);
        if (oe_scratch_add(scratch, (uint32_t)i, length, id) < 0) {
            return -1;
        }
        i += length;
    }
    int status = oe_scratch_merge(scratch, find_merge, s, text);
    if (status < 0) {
        return status;
    }
    for (int32_t i = size ? 0 : -1; i >= 0 && status == 0; i = scratch->symbols[i].next) {
        const oe_symbol *symbol = &scratch->symbols[i];
        const char *at = text + symbol->start;
        if (symbol->id >= 0) {
            status = emit_piece(s, at, symbol->length, symbol->id, ids);
        } else {
            status = emit_missing(s->spm, at, symbol->length, *after_unknown, ids);
        }
        *after_unknown = symbol->id < 0;
    }
    return status;
}

int oe_spm_encode(const oe_spm *spm, oe_scratch *scratch, const char *text, size_t size, oe_id_list *ids) {
    session s = {spm, NULL};
    if (spm->any_unused) {
        s.left_lengths = calloc((size_t)spm->n_vocab, sizeof *s.left_lengths);
        if (!s.left_lengths) {
            return -1;
        }
    }
    int status = 0;
    int after_unknown = 0;
    for (size_t start = 0; start < size && status == 0;) {
        /* Unused pieces remember their last split, so the order of merges must not change. */
        size_t end = spm->any_unused ? size : oe_spm_boundaries_end(&spm->boundaries, text, size, start);
        status = encode_chunk(&s, scratch, text + start, end - start, ids, &after_unknown);
        start = end;
    }
    free(s.left_lengths);
    return status;
}
