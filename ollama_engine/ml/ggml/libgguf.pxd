# ggml's gguf.h, and of ggml.h only what describes tensor types: the symbols this package calls, in header order.

from libc.stdint cimport int64_t, uint32_t


cdef extern from "ggml.h" nogil:
    enum ggml_type:
        GGML_TYPE_COUNT

    int64_t ggml_blck_size(ggml_type type)
    size_t ggml_type_size(ggml_type type)
    const char *ggml_type_name(ggml_type type)


cdef extern from "gguf.h" nogil:
    enum gguf_type:
        GGUF_TYPE_UINT8
        GGUF_TYPE_INT8
        GGUF_TYPE_UINT16
        GGUF_TYPE_INT16
        GGUF_TYPE_UINT32
        GGUF_TYPE_INT32
        GGUF_TYPE_FLOAT32
        GGUF_TYPE_BOOL
        GGUF_TYPE_STRING
        GGUF_TYPE_ARRAY
        GGUF_TYPE_UINT64
        GGUF_TYPE_INT64
        GGUF_TYPE_FLOAT64

    struct ggml_context:
        pass

    struct gguf_context:
        pass

    struct gguf_init_params:
        bint no_alloc
        ggml_context **ctx

    # Copies of metadata values are made outside of ggml's own try blocks: std::bad_alloc can get out.
    gguf_context *gguf_init_from_buffer(const void *data, size_t size, gguf_init_params params) except +
    void gguf_free(gguf_context *ctx)

    uint32_t gguf_get_version(const gguf_context *ctx)
    size_t gguf_get_alignment(const gguf_context *ctx)
    size_t gguf_get_data_offset(const gguf_context *ctx)

    int64_t gguf_get_n_kv(const gguf_context *ctx)
    const char *gguf_get_key(const gguf_context *ctx, int64_t key_id)
    gguf_type gguf_get_kv_type(const gguf_context *ctx, int64_t key_id)
    gguf_type gguf_get_arr_type(const gguf_context *ctx, int64_t key_id)

    const char *gguf_get_val_str(const gguf_context *ctx, int64_t key_id)
    const void *gguf_get_val_data(const gguf_context *ctx, int64_t key_id)
    size_t gguf_get_arr_n(const gguf_context *ctx, int64_t key_id)
    const void *gguf_get_arr_data(const gguf_context *ctx, int64_t key_id)
    const char *gguf_get_arr_str(const gguf_context *ctx, int64_t key_id, size_t i)

    int64_t gguf_get_n_tensors(const gguf_context *ctx)
    size_t gguf_get_tensor_offset(const gguf_context *ctx, int64_t tensor_id)
    const char *gguf_get_tensor_name(const gguf_context *ctx, int64_t tensor_id)
    const int64_t *gguf_get_tensor_ne(const gguf_context *ctx, int64_t tensor_id)
    ggml_type gguf_get_tensor_type(const gguf_context *ctx, int64_t tensor_id)
    size_t gguf_get_tensor_size(const gguf_context *ctx, int64_t tensor_id)
