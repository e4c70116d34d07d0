#include "tokenizer/unigram.h"

enum { UNREACHED = -2, UNKNOWN = -1 };

/* The best way to a place in the text: the piece that ends there. */
typedef struct {
    double   score; /* of all pieces up to here */
    uint32_t start; /* of the piece */
    uint32_t next;  /* where the piece after it ends, once the best way is known */
    int32_t  id;
} place;

int oe_unigram_init(oe_unigram *model, int32_t n_vocab) {
    memset(model, 0, sizeof *model);
    oe_text_trie_init(&model->pieces);
    memset(model->bytes, 0xff, sizeof model->bytes);
    model->unknown = -1;
    model->scores = calloc((size_t)n_vocab + 1, sizeof *model->scores);
    return model->scores ? 0 : -1;
}

void oe_unigram_free(oe_unigram *model) {
    oe_text_trie_free(&model->pieces);
    free(model->scores);
    model->scores = NULL;
}

int oe_unigram_put_piece(oe_unigram *model, const char *text, size_t length, int32_t id, double score) {
    model->scores[id] = score;
    oe_spm_boundaries_add(&model->boundaries, text, length);
    return oe_text_trie_put(&model->pieces, text, length, id);
}

/* -- one word ------------------------------------------------------------------------------------------------------ */

/* Of two ways with the same score the one found first stays, as in SentencePiece. */
static void reach(place *places, size_t start, size_t end, int32_t id, double score) {
    double total = places[start].score + score;
    if (places[end].id == UNREACHED || total > places[end].score) {
        places[end] = (place){total, (uint32_t)start, 0, id};
    }
}

/* 0, or OE_STOPPED. */
static int search(const oe_unigram *model, place *places, const char *text, size_t size, oe_checkpoint *checkpoint) {
    places[0] = (place){0, 0, 0, UNKNOWN};
    for (size_t i = 1; i <= size; ++i) {
        places[i].id = UNREACHED;
    }
    for (size_t start = 0; start < size;) {
        size_t length = oe_utf8_length(text + start, size - start);
        int is_piece = 0;
        int32_t node = oe_text_trie_child(&model->pieces, -1, (uint8_t)text[start]);
        for (size_t end = start + 1; node >= 0; ++end) {
            int32_t id = model->pieces.nodes[node].id;
            if (id >= 0) {
                reach(places, start, end, id, model->scores[id]);
                is_piece |= end - start == length;
            }
            node = end < size ? oe_text_trie_child(&model->pieces, node, (uint8_t)text[end]) : -1;
        }
        if (!is_piece) {
            reach(places, start, start + length, UNKNOWN, model->unknown_score);
        }
        start += length;
        if (oe_checkpoint_pass(checkpoint) < 0) {
            return OE_STOPPED;
        }
    }
    return 0;
}

/* A run of unknown characters is one token; one that is spelled in bytes ends it. */
static int emit_unknown(const oe_unigram *model, const char *text, size_t size, oe_id_list *ids, int *after_unknown) {
    const int was_after_unknown = *after_unknown;
    *after_unknown = 1;
    for (size_t i = 0; i < size; ++i) {
        if (model->bytes[(uint8_t)text[i]] < 0) {
            return model->unknown < 0  ? 1 + (uint8_t)text[i]
                   : was_after_unknown ? 0
                                       : oe_id_list_add(ids, model->unknown);
        }
    }
    *after_unknown = 0;
    for (size_t i = 0; i < size; ++i) {
        if (oe_id_list_add(ids, model->bytes[(uint8_t)text[i]]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int emit(const oe_unigram *model, place *places, const char *text, size_t size, oe_id_list *ids,
                int *after_unknown) {
    for (size_t end = size; end > 0; end = places[end].start) {
        places[places[end].start].next = (uint32_t)end;
    }
    int status = 0;
    for (size_t start = 0; start < size && status == 0; start = places[start].next) {
        size_t end = places[start].next;
        if (places[end].id >= 0) {
            status = oe_id_list_add(ids, places[end].id);
            *after_unknown = 0;
        } else {
            status = emit_unknown(model, text + start, end - start, ids, after_unknown);
        }
    }
    return status;
}

/* -- all words ----------------------------------------------------------------------------------------------------- */

int oe_unigram_encode(const oe_unigram *model, const char *text, size_t size, oe_checkpoint *checkpoint,
                      oe_id_list *ids) {
    place *places = NULL;
    size_t capacity = 0;
    int status = 0;
    int after_unknown = 0;
    for (size_t start = 0; start < size && status == 0;) {
        size_t end = oe_spm_boundaries_end(&model->boundaries, text, size, start);
        if (end - start >= capacity) {
            free(places);
            capacity = end - start + 1 + 256;
            places = malloc(capacity * sizeof *places);
        }
        if (!places) {
            return -1;
        }
        status = search(model, places, text + start, end - start, checkpoint);
        if (status == 0) {
            status = emit(model, places, text + start, end - start, ids, &after_unknown);
        }
        start = end;
    }
    free(places);
    return status;
}
