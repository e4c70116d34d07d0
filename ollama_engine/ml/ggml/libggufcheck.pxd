# csrc/gguf/gguf_check.h, in header order.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "gguf/gguf_check.h" nogil:
    enum: OE_GGUF_MAX_HEADER

    enum oe_gguf_status:
        OE_GGUF_OK
        OE_GGUF_NEED_MORE
        OE_GGUF_NO_MEMORY
        OE_GGUF_MAGIC
        OE_GGUF_BYTE_ORDER
        OE_GGUF_VERSION
        OE_GGUF_TRUNCATED
        OE_GGUF_HEADER_SIZE
        OE_GGUF_COUNT
        OE_GGUF_STRING_LENGTH
        OE_GGUF_EMPTY_NAME
        OE_GGUF_ZERO_IN_NAME
        OE_GGUF_DUPLICATE_KEY
        OE_GGUF_VALUE_TYPE
        OE_GGUF_NESTED_ARRAY
        OE_GGUF_ARRAY_LENGTH
        OE_GGUF_ALIGNMENT_TYPE
        OE_GGUF_ALIGNMENT
        OE_GGUF_NAME_LENGTH
        OE_GGUF_DUPLICATE_TENSOR
        OE_GGUF_DIMENSIONS
        OE_GGUF_EXTENT
        OE_GGUF_ELEMENTS
        OE_GGUF_TENSOR_TYPE
        OE_GGUF_BLOCK
        OE_GGUF_OFFSET
        OE_GGUF_DATA_RANGE

    struct oe_gguf_fault:
        oe_gguf_status status
        uint64_t offset
        uint64_t got
        uint64_t want
        int64_t index
        const char *what
        const char *name
        size_t name_length

    struct oe_gguf_kv:
        uint64_t value
        uint64_t count
        const char *name
        size_t name_length
        int32_t type
        uint8_t is_array
        uint8_t has_zero

    struct oe_gguf_tensor:
        const char *name
        size_t name_length
        uint64_t offset
        uint64_t nbytes
        int64_t *ne
        int32_t n_dims
        int32_t type

    struct oe_gguf_layout:
        oe_gguf_kv *kv
        oe_gguf_tensor *tensors
        int64_t n_kv
        int64_t n_tensors
        uint64_t data_offset
        uint32_t version
        uint32_t alignment

    struct oe_gguf_types:
        const int64_t *block_size
        const int64_t *block_bytes
        int32_t n

    oe_gguf_status oe_gguf_check(const uint8_t *data, size_t have, uint64_t file_size, const oe_gguf_types *types,
                                 oe_gguf_layout *layout, oe_gguf_fault *fault)
    void oe_gguf_layout_free(oe_gguf_layout *layout)
