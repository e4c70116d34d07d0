#include "tokenizer/bpe.h"

#include <stdio.h>
#include <string.h>

/* GPT-2's alphabet: printable Latin-1 spells itself, the other 68 bytes are spelled U+0100, U+0101, ... in order. */
static void set_spellings(oe_bpe *bpe) {
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        int itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        uint32_t code = itself ? byte : next++;
        if (code < 0x80) {
            bpe->spelling[byte][0] = (char)code;
        } else {
            bpe->spelling[byte][0] = (char)(0xc0 | code >> 6);
            bpe->spelling[byte][1] = (char)(0x80 | (code & 0x3f));
        }
        bpe->spelling_length[byte] = code < 0x80 ? 1 : 2;
    }
}

int oe_bpe_init(oe_bpe *bpe, int32_t n_vocab, uint32_t n_merges, int byte_level) {
    memset(bpe, 0, sizeof *bpe);
    bpe->n_vocab = bpe->n_texts = n_vocab;
    bpe->byte_level = byte_level;
    bpe->unknown = -1;
    set_spellings(bpe);
    bpe->whole = calloc((size_t)n_vocab + 1, 1);
    if (!bpe->whole || oe_text_map_init(&bpe->texts, (uint32_t)n_vocab + 256) < 0) {
        return -1;
    }
    return oe_pair_map_init(&bpe->merges, n_merges);
}

void oe_bpe_free(oe_bpe *bpe) {
    oe_text_map_free(&bpe->texts);
    oe_pair_map_free(&bpe->merges);
    free(bpe->whole);
    bpe->whole = NULL;
}

int oe_bpe_put_tokens(oe_bpe *bpe, const oe_bpe_text *texts, int n, int32_t id, const uint8_t *whole) {
    memcpy(bpe->whole + id, whole, (size_t)n);
    for (int i = 0; i < n; ++i) {
        oe_text_map_prefetch(&bpe->texts, texts[i].start, texts[i].length);
    }
    for (int i = 0; i < n; ++i) {
        if (oe_text_map_put(&bpe->texts, texts[i].start, texts[i].length, id + i) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The id of a text; a text that no token has gets the next id past the vocabulary. -1 when memory is short. */
static int32_t intern(oe_bpe *bpe, const char *text, uint32_t length) {
    int32_t id = oe_text_map_find(&bpe->texts, text, length);
    if (id >= 0) {
        return id;
    }
    return oe_text_map_put(&bpe->texts, text, length, bpe->n_texts) < 0 ? -1 : bpe->n_texts++;
}

/* A merge on its way into the tables. */
typedef struct {
    char    *joined; /* both parts */
    char     room[64];
    uint32_t left_length, length;
    int32_t  left, right, result;
} joint;

/* 0; 1 when there is no space to split at; -1 when memory is short. */
static int join(joint *j, const oe_bpe_text *text) {
    const char *space = text->length > 2 ? memchr(text->start + 1, ' ', text->length - 1) : NULL;
    j->joined = j->room;
    if (!space || space + 1 == text->start + text->length) {
        return 1;
    }
    j->length = text->length - 1;
    j->left_length = (uint32_t)(space - text->start);
    if (j->length > sizeof j->room && !(j->joined = malloc(j->length))) {
        return -1;
    }
    memcpy(j->joined, text->start, j->left_length);
    memcpy(j->joined + j->left_length, space + 1, j->length - j->left_length);
    return 0;
}

static int intern_joint(oe_bpe *bpe, joint *j) {
    j->left = intern(bpe, j->joined, j->left_length);
    j->right = intern(bpe, j->joined + j->left_length, j->length - j->left_length);
    j->result = intern(bpe, j->joined, j->length);
    if (!bpe->byte_level) {
        oe_spm_boundaries_add(&bpe->boundaries, j->joined, j->length);
    }
    return j->left < 0 || j->right < 0 || j->result < 0 ? -1 : 0;
}

static int put_joints(oe_bpe *bpe, joint *joints, int n, uint32_t rank) {
    for (int i = 0; i < n; ++i) {
        oe_text_map_prefetch(&bpe->texts, joints[i].joined, joints[i].left_length);
        oe_text_map_prefetch(&bpe->texts, joints[i].joined + joints[i].left_length,
                             joints[i].length - joints[i].left_length);
        oe_text_map_prefetch(&bpe->texts, joints[i].joined, joints[i].length);
    }
    for (int i = 0; i < n; ++i) {
        if (intern_joint(bpe, &joints[i]) < 0) {
            return -1;
        }
        oe_pair_map_prefetch(&bpe->merges, joints[i].left, joints[i].right);
    }
    for (int i = 0; i < n; ++i) {
        const oe_merge merge = {rank + (uint32_t)i, joints[i].result};
        oe_pair_map_put(&bpe->merges, joints[i].left, joints[i].right, merge);
    }
    return 0;
}

int oe_bpe_put_merges(oe_bpe *bpe, const oe_bpe_text *texts, int n, uint32_t rank) {
    joint joints[OE_BPE_BATCH];
    int joined = 0, status = 0;
    while (joined < n && (status = join(&joints[joined], &texts[joined])) == 0) {
        joined++;
    }
    if (status == 0) {
        status = put_joints(bpe, joints, n, rank);
    }
    for (int i = 0; i < joined; ++i) {
        if (joints[i].joined != joints[i].room) {
            free(joints[i].joined);
        }
    }
    return status > 0 ? n - joined : status;
}

int oe_bpe_finish(oe_bpe *bpe) {
    for (int byte = 0; byte < 256; ++byte) {
        bpe->symbols[byte] = intern(bpe, bpe->spelling[byte], bpe->spelling_length[byte]);
        if (bpe->symbols[byte] < 0) {
            return -1;
        }
        if (bpe->byte_level) {
            bpe->bytes[byte] = bpe->symbols[byte] < bpe->n_vocab ? bpe->symbols[byte] : -1;
        } else {
            char name[8];
            int length = snprintf(name, sizeof name, "<0x%02X>", byte);
            bpe->bytes[byte] = oe_text_map_find(&bpe->texts, name, (size_t)length);
        }
    }
    return 0;
}

/* The token whose text is the whole piece, or -1. -2 when memory is short. */
static int32_t find_whole(const oe_bpe *bpe, oe_scratch *scratch, const char *piece, size_t size) {
    if (bpe->byte_level) {
        if (oe_scratch_reserve_text(scratch, size * 2) < 0) {
            return -2;
        }
        char *out = scratch->text;
        for (size_t i = 0; i < size; ++i) {
            uint8_t byte = (uint8_t)piece[i];
            memcpy(out, bpe->spelling[byte], bpe->spelling_length[byte]);
            out += bpe->spelling_length[byte];
        }
        piece = scratch->text;
        size = (size_t)(out - scratch->text);
    }
    int32_t id = oe_text_map_find(&bpe->texts, piece, size);
    return id >= 0 && id < bpe->n_vocab && bpe->whole[id] ? id : -1;
}

static int add_symbols(const oe_bpe *bpe, oe_scratch *scratch, const char *piece, size_t size) {
    scratch->symbols_size = 0;
    for (size_t i = 0; i < size;) {
        uint32_t length = bpe->byte_level ? 1 : oe_utf8_length(piece + i, size - i);
        int32_t id = bpe->byte_level ? bpe->symbols[(uint8_t)piece[i]]
                                     : oe_text_map_find(&bpe->texts, piece + i, length);
        if (oe_scratch_add(scratch, (uint32_t)i, length, id) < 0) {
            return -1;
        }
        i += length;
    }
    return 0;
}

static int emit(const oe_bpe *bpe, const oe_symbol *symbol, const char *piece, oe_id_list *ids) {
    if (symbol->id >= 0 && symbol->id < bpe->n_vocab) {
        return oe_id_list_add(ids, symbol->id);
    }
    const uint8_t *bytes = (const uint8_t *)piece + symbol->start;
    for (uint32_t i = 0; i < symbol->length && bpe->unknown >= 0; ++i) {
        if (bpe->bytes[bytes[i]] < 0) {
            return oe_id_list_add(ids, bpe->unknown);
        }
    }
    for (uint32_t i = 0; i < symbol->length; ++i) {
        int32_t id = bpe->bytes[bytes[i]];
        if (id < 0) {
            ids->dropped++;
            ids->dropped_byte = bytes[i];
        } else if (oe_id_list_add(ids, id) < 0) {
            return -1;
        }
    }
    return 0;
}

static int encode_word(const oe_bpe *bpe, oe_scratch *scratch, const char *word, size_t size, oe_id_list *ids) {
    if (add_symbols(bpe, scratch, word, size) < 0) {
        return -1;
    }
    int status = oe_scratch_merge(scratch, oe_pair_map_find, &bpe->merges, word);
    if (status < 0) {
        return status;
    }
    for (int32_t i = size ? 0 : -1; i >= 0; i = scratch->symbols[i].next) {
        if (emit(bpe, &scratch->symbols[i], word, ids) < 0) {
            return -1;
        }
    }
    return 0;
}

int oe_bpe_encode(const oe_bpe *bpe, oe_scratch *scratch, const char *piece, size_t size, int whole, oe_id_list *ids) {
    int status = oe_checkpoint_pass(&scratch->checkpoint);
    if (status < 0) {
        return status;
    }
    if (whole) {
        int32_t id = find_whole(bpe, scratch, piece, size);
        if (id == -2) {
            return -1;
        }
        if (id >= 0) {
            return oe_id_list_add(ids, id);
        }
    }
    for (size_t start = 0; start < size;) {
        size_t end = bpe->byte_level ? size : oe_spm_boundaries_end(&bpe->boundaries, piece, size, start);
        status = encode_word(bpe, scratch, piece + start, end - start, ids);
        if (status < 0) {
            return status;
        }
        start = end;
    }
    return 0;
}
