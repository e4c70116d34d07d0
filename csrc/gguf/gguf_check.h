/* Bounds checks of a GGUF header, before ggml's own reader sees it.
 *
 * ggml's reader allocates by counts and lengths that it has not checked, reports faults on stderr only, and loses the
 * length of strings. This walk reads nothing outside of [data, data + have), allocates in proportion to the bytes that
 * it has read, and returns the first fault with its place in the file.
 */
#ifndef OE_GGUF_CHECK_H
#define OE_GGUF_CHECK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OE_GGUF_MAX_DIMS 4
#define OE_GGUF_MAX_NAME 64                        /* with the terminating zero, as in ggml */
#define OE_GGUF_MAX_HEADER ((uint64_t)1 << 30)     /* real headers stay below 50 MB */
#define OE_GGUF_MAX_ALIGNMENT ((uint64_t)1 << 20)

enum oe_gguf_status {
    OE_GGUF_OK = 0,
    OE_GGUF_NEED_MORE,        /* want: how many bytes of the file `data` must hold; call again */
    OE_GGUF_NO_MEMORY,
    OE_GGUF_MAGIC,
    OE_GGUF_BYTE_ORDER,
    OE_GGUF_VERSION,          /* got */
    OE_GGUF_TRUNCATED,        /* want bytes, got are left */
    OE_GGUF_HEADER_SIZE,      /* the header runs past want bytes */
    OE_GGUF_COUNT,            /* got items, the file cannot hold more than want */
    OE_GGUF_STRING_LENGTH,    /* got bytes, want are left */
    OE_GGUF_EMPTY_NAME,
    OE_GGUF_ZERO_IN_NAME,
    OE_GGUF_DUPLICATE_KEY,
    OE_GGUF_VALUE_TYPE,       /* got */
    OE_GGUF_NESTED_ARRAY,
    OE_GGUF_ARRAY_LENGTH,     /* got elements, the file cannot hold more than want */
    OE_GGUF_ALIGNMENT_TYPE,   /* got: the value type, which is not u32 */
    OE_GGUF_ALIGNMENT,        /* got */
    OE_GGUF_NAME_LENGTH,      /* got */
    OE_GGUF_DUPLICATE_TENSOR,
    OE_GGUF_DIMENSIONS,       /* got */
    OE_GGUF_EXTENT,           /* got in dimension want */
    OE_GGUF_ELEMENTS,         /* more than can be counted */
    OE_GGUF_TENSOR_TYPE,      /* got */
    OE_GGUF_BLOCK,            /* got elements per row, blocks of want */
    OE_GGUF_OFFSET,           /* got, want */
    OE_GGUF_DATA_RANGE        /* the data would end at want, the file has got bytes */
};

/* The first fault: where in the file, while reading what (a literal), of which key or tensor (inside `data`). */
struct oe_gguf_fault {
    enum oe_gguf_status status;
    uint64_t offset, got, want;
    int64_t index;            /* of the key or tensor, from 0; -1 outside of both */
    const char *what;
    const char *name;         /* NULL while there is none; not terminated */
    size_t name_length;
};

struct oe_gguf_kv {
    uint64_t value;           /* where the value starts: the first scalar, string length or array element */
    uint64_t count;           /* 1 for a scalar */
    const char *name;
    size_t name_length;
    int32_t type;             /* of the scalar or of the elements */
    uint8_t is_array;
    uint8_t has_zero;         /* a string value holds a zero byte: ggml's C strings would cut it there */
};

struct oe_gguf_tensor {
    const char *name;
    size_t name_length;
    uint64_t offset;          /* from the start of the file */
    uint64_t nbytes;
    int64_t ne[OE_GGUF_MAX_DIMS];
    int32_t n_dims;
    int32_t type;
};

struct oe_gguf_layout {
    struct oe_gguf_kv *kv;
    struct oe_gguf_tensor *tensors;
    int64_t n_kv, n_tensors;
    uint64_t data_offset;     /* `data` holds at least this many bytes on success */
    uint32_t version, alignment;
};

/* Block sizes of tensor types 0..n-1; block_size 0 marks an id that does not exist. */
struct oe_gguf_types {
    const int64_t *block_size;
    const int64_t *block_bytes;
    int32_t n;
};

/* Walk the header in the first `have` bytes of a file of `file_size` bytes.
 * Fills `layout` (to be freed with oe_gguf_layout_free, whatever is returned) and, unless it returns OE_GGUF_OK,
 * `fault`.
 */
enum oe_gguf_status oe_gguf_check(const uint8_t *data, size_t have, uint64_t file_size,
                                  const struct oe_gguf_types *types, struct oe_gguf_layout *layout,
                                  struct oe_gguf_fault *fault);

void oe_gguf_layout_free(struct oe_gguf_layout *layout);

#ifdef __cplusplus
}
#endif

#endif
