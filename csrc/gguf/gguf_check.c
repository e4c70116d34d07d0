#include "gguf/gguf_check.h"

#include <stdlib.h>

#include "gguf/gguf_walk.h"

/* Value types of the format. */
enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STRING, T_ARRAY, T_U64, T_I64, T_F64, T_COUNT };

static const uint8_t value_size[T_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

#define MIN_KV_BYTES (8 + 1 + 4 + 1)           /* key length, one character, type, one byte */
#define MIN_TENSOR_BYTES (8 + 1 + 4 + 4 + 8)   /* name length, one character, dimensions, type, offset */
#define MAX_BYTES ((uint64_t)1 << 61)          /* of a tensor and of all: three of these still add up */

/* Room for one more item in a table that doubles. Memory grows with the items read, whatever a count claims. */
static void *grown(void *table, int64_t n, size_t item) {
    if (n & (n - 1)) {
        return table;
    }
    return realloc(table, (n ? (size_t)n * 2 : 1) * item);
}

/* -- metadata ------------------------------------------------------------------------------------------------------ */

static int skip_strings(oe_gguf_walk *w, struct oe_gguf_kv *kv) {
    for (uint64_t i = 0; i < kv->count; ++i) {
        const char *text;
        size_t length;
        if (!oe_walk_string(w, &text, &length)) {
            return 0;
        }
        kv->has_zero |= memchr(text, 0, length) != NULL;
    }
    return 1;
}

static int skip_value(oe_gguf_walk *w, struct oe_gguf_kv *kv) {
    const uint64_t at = w->pos;
    uint32_t type;
    uint64_t most;
    w->fault->what = "a metadata type";
    if (!oe_walk_u32(w, &type)) {
        return 0;
    }
    kv->is_array = type == T_ARRAY;
    kv->count = 1;
    w->fault->what = kv->is_array ? "a metadata array" : "a metadata value";
    if (kv->is_array && !(oe_walk_u32(w, &type) && oe_walk_u64(w, &kv->count))) {
        return 0;
    }
    if (type == T_ARRAY) {
        return oe_walk_fail(w, OE_GGUF_NESTED_ARRAY, at, 0, 0);
    }
    if (type >= T_COUNT) {
        return oe_walk_fail(w, OE_GGUF_VALUE_TYPE, at, type, T_COUNT - 1);
    }
    kv->type = (int32_t)type;
    kv->value = w->pos;
    most = (w->size - w->pos) / (type == T_STRING ? 8 : value_size[type]);
    if (kv->is_array && (kv->count > most || kv->count > OE_GGUF_MAX_ITEMS)) {
        return oe_walk_fail(w, OE_GGUF_ARRAY_LENGTH, at, kv->count, most);
    }
    if (type == T_STRING) {
        return skip_strings(w, kv);
    }
    if (!oe_walk_need(w, kv->count * value_size[type])) {
        return 0;
    }
    w->pos += kv->count * value_size[type];
    return 1;
}

static int take_alignment(oe_gguf_walk *w, const struct oe_gguf_kv *kv, struct oe_gguf_layout *layout) {
    static const char key[] = "general.alignment";
    uint32_t value;
    if (kv->name_length != sizeof(key) - 1 || memcmp(kv->name, key, kv->name_length) != 0) {
        return 1;
    }
    if (kv->is_array || kv->type != T_U32) {
        return oe_walk_fail(w, OE_GGUF_ALIGNMENT_TYPE, kv->value, kv->is_array ? T_ARRAY : (uint64_t)kv->type, T_U32);
    }
    memcpy(&value, w->data + kv->value, sizeof(value));
    if (value == 0 || (value & (value - 1)) || value > OE_GGUF_MAX_ALIGNMENT) {
        return oe_walk_fail(w, OE_GGUF_ALIGNMENT, kv->value, value, OE_GGUF_MAX_ALIGNMENT);
    }
    layout->alignment = value;
    return 1;
}

static int walk_metadata(oe_gguf_walk *w, int64_t count, struct oe_gguf_layout *layout) {
    for (int64_t i = 0; i < count; ++i) {
        struct oe_gguf_kv kv = {0};
        void *table;
        w->fault->index = i;
        w->fault->what = "a metadata key";
        if (!oe_walk_name(w, &kv.name, &kv.name_length) || !skip_value(w, &kv) || !take_alignment(w, &kv, layout)) {
            return 0;
        }
        table = grown(layout->kv, layout->n_kv, sizeof(kv));
        if (!table) {
            return oe_walk_fail(w, OE_GGUF_NO_MEMORY, w->pos, 0, 0);
        }
        layout->kv = table;
        layout->kv[layout->n_kv++] = kv;
    }
    return 1;
}

/* -- tensors ------------------------------------------------------------------------------------------------------- */

static int read_shape(oe_gguf_walk *w, struct oe_gguf_tensor *tensor) {
    const uint64_t at = w->pos;
    uint64_t elements = 1;
    uint32_t n_dims;
    w->fault->what = "a tensor shape";
    if (!oe_walk_u32(w, &n_dims)) {
        return 0;
    }
    if (n_dims > OE_GGUF_MAX_DIMS) {
        return oe_walk_fail(w, OE_GGUF_DIMENSIONS, at, n_dims, OE_GGUF_MAX_DIMS);
    }
    tensor->n_dims = (int32_t)n_dims;
    for (uint32_t i = 0; i < OE_GGUF_MAX_DIMS; ++i) {
        uint64_t ne = 1;
        if (i < n_dims && !oe_walk_u64(w, &ne)) {
            return 0;
        }
        if (ne == 0 || ne > INT64_MAX) {
            return oe_walk_fail(w, OE_GGUF_EXTENT, w->pos - 8, ne, i);
        }
        if (elements > INT64_MAX / ne) {
            return oe_walk_fail(w, OE_GGUF_ELEMENTS, at, 0, 0);
        }
        elements *= ne;
        tensor->ne[i] = (int64_t)ne;
    }
    return 1;
}

/* Sets nbytes from type and shape. */
static int read_type(oe_gguf_walk *w, const struct oe_gguf_types *types, struct oe_gguf_tensor *tensor) {
    const uint64_t at = w->pos;
    uint64_t block, bytes, blocks;
    uint32_t type;
    w->fault->what = "a tensor type";
    if (!oe_walk_u32(w, &type)) {
        return 0;
    }
    if (type >= (uint32_t)types->n || types->block_size[type] == 0) {
        return oe_walk_fail(w, OE_GGUF_TENSOR_TYPE, at, type, (uint64_t)types->n - 1);
    }
    block = (uint64_t)types->block_size[type];
    bytes = (uint64_t)types->block_bytes[type];
    if ((uint64_t)tensor->ne[0] % block) {
        return oe_walk_fail(w, OE_GGUF_BLOCK, at, (uint64_t)tensor->ne[0], block);
    }
    blocks = (uint64_t)tensor->ne[0] / block * (uint64_t)tensor->ne[1] * (uint64_t)tensor->ne[2] *
             (uint64_t)tensor->ne[3];
    if (blocks > MAX_BYTES / bytes) {
        return oe_walk_fail(w, OE_GGUF_ELEMENTS, at, 0, 0);
    }
    tensor->type = (int32_t)type;
    tensor->nbytes = blocks * bytes;
    return 1;
}

/* Offsets must be exactly the running sum of padded sizes: ggml accepts no gaps, no overlaps, no other order. */
static int read_offset(oe_gguf_walk *w, uint32_t alignment, uint64_t *expected, struct oe_gguf_tensor *tensor) {
    const uint64_t at = w->pos;
    w->fault->what = "a tensor offset";
    if (!oe_walk_u64(w, &tensor->offset)) {
        return 0;
    }
    if (tensor->offset != *expected) {
        return oe_walk_fail(w, OE_GGUF_OFFSET, at, tensor->offset, *expected);
    }
    if (*expected > MAX_BYTES) {
        return oe_walk_fail(w, OE_GGUF_ELEMENTS, at, 0, 0);
    }
    *expected += (tensor->nbytes + alignment - 1) / alignment * alignment;
    return 1;
}

static int walk_tensors(oe_gguf_walk *w, int64_t count, const struct oe_gguf_types *types,
                        struct oe_gguf_layout *layout) {
    uint64_t expected = 0;
    for (int64_t i = 0; i < count; ++i) {
        struct oe_gguf_tensor tensor = {0};
        const uint64_t at = w->pos;
        void *table;
        w->fault->index = i;
        w->fault->what = "a tensor name";
        if (!oe_walk_name(w, &tensor.name, &tensor.name_length)) {
            return 0;
        }
        if (tensor.name_length >= OE_GGUF_MAX_NAME) {
            return oe_walk_fail(w, OE_GGUF_NAME_LENGTH, at, tensor.name_length, OE_GGUF_MAX_NAME - 1);
        }
        if (!read_shape(w, &tensor) || !read_type(w, types, &tensor) ||
            !read_offset(w, layout->alignment, &expected, &tensor)) {
            return 0;
        }
        table = grown(layout->tensors, layout->n_tensors, sizeof(tensor));
        if (!table) {
            return oe_walk_fail(w, OE_GGUF_NO_MEMORY, w->pos, 0, 0);
        }
        layout->tensors = table;
        layout->tensors[layout->n_tensors++] = tensor;
    }
    return 1;
}

/* Turns offsets within the data section into offsets within the file, and checks them against the file's size. */
static int place_tensors(oe_gguf_walk *w, struct oe_gguf_layout *layout) {
    layout->data_offset = w->pos;
    if (layout->n_tensors > 0) {
        layout->data_offset = (w->pos + layout->alignment - 1) / layout->alignment * layout->alignment;
    }
    for (int64_t i = 0; i < layout->n_tensors; ++i) {
        struct oe_gguf_tensor *tensor = &layout->tensors[i];
        tensor->offset += layout->data_offset;
        if (tensor->offset + tensor->nbytes > w->size) {
            w->fault->what = "tensor data";
            w->fault->index = i;
            w->fault->name = tensor->name;
            w->fault->name_length = tensor->name_length;
            return oe_walk_fail(w, OE_GGUF_DATA_RANGE, tensor->offset, w->size, tensor->offset + tensor->nbytes);
        }
    }
    return oe_walk_need(w, layout->data_offset - w->pos);
}

/* -- the whole header ---------------------------------------------------------------------------------------------- */

static int read_count(oe_gguf_walk *w, const char *what, uint64_t least_bytes, int64_t *count) {
    const uint64_t at = w->pos, most = w->size / least_bytes;
    uint64_t n;
    w->fault->what = what;
    if (!oe_walk_u64(w, &n)) {
        return 0;
    }
    if (n > most) {
        return oe_walk_fail(w, OE_GGUF_COUNT, at, n, most);
    }
    *count = (int64_t)n;
    return 1;
}

static int read_preamble(oe_gguf_walk *w, struct oe_gguf_layout *layout, int64_t *n_kv, int64_t *n_tensors) {
    char magic[4];
    w->fault->what = "the magic bytes";
    if (w->size < sizeof(magic)) {
        return oe_walk_fail(w, OE_GGUF_MAGIC, 0, 0, 0);
    }
    if (!oe_walk_bytes(w, magic, sizeof(magic))) {
        return 0;
    }
    if (memcmp(magic, "GGUF", sizeof(magic)) != 0) {
        return oe_walk_fail(w, OE_GGUF_MAGIC, 0, 0, 0);
    }
    w->fault->what = "the version";
    if (!oe_walk_u32(w, &layout->version)) {
        return 0;
    }
    if (layout->version != 0 && (layout->version & 0xffff) == 0) {
        return oe_walk_fail(w, OE_GGUF_BYTE_ORDER, 4, layout->version, 0);
    }
    if (layout->version < 2 || layout->version > 3) {
        return oe_walk_fail(w, OE_GGUF_VERSION, 4, layout->version, 3);
    }
    return read_count(w, "the number of tensors", MIN_TENSOR_BYTES, n_tensors) &&
           read_count(w, "the number of metadata keys", MIN_KV_BYTES, n_kv);
}

enum oe_gguf_status oe_gguf_check(const uint8_t *data, size_t have, uint64_t file_size,
                                  const struct oe_gguf_types *types, struct oe_gguf_layout *layout,
                                  struct oe_gguf_fault *fault) {
    oe_gguf_walk w = {data, have, file_size, 0, fault};
    int64_t n_kv = 0, n_tensors = 0;
    memset(layout, 0, sizeof(*layout));
    memset(fault, 0, sizeof(*fault));
    layout->alignment = 32;
    fault->index = -1;
    if (read_preamble(&w, layout, &n_kv, &n_tensors) && walk_metadata(&w, n_kv, layout) &&
        walk_tensors(&w, n_tensors, types, layout) && oe_gguf_check_names(&w, layout) && place_tensors(&w, layout)) {
        return OE_GGUF_OK;
    }
    return fault->status;
}

void oe_gguf_layout_free(struct oe_gguf_layout *layout) {
    free(layout->kv);
    free(layout->tensors);
    layout->kv = NULL;
    layout->tensors = NULL;
    layout->n_kv = layout->n_tensors = 0;
}
