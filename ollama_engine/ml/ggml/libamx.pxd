from libc.stdint cimport int64_t

from ollama_engine.ml.ggml cimport libggml as lib


cdef extern from "kernels/amx/amx_op.h" nogil:
    ctypedef enum oe_amx_activation:
        OE_AMX_NONE
        OE_AMX_GELU
        OE_AMX_QUICK_GELU
    ctypedef struct oe_amx_params:
        int parts
        oe_amx_activation activation
        float scale
        int64_t key_dim
        int64_t n_keys
    const int OE_AMX_K
    const int OE_AMX_ROWS
    const int OE_AMX_COLUMNS
    const int OE_AMX_TILE
    const int OE_AMX_LARGEST_HEAD

    bint oe_amx_allowed() noexcept
    int64_t oe_amx_padded(int64_t n, int64_t unit) noexcept
    void oe_amx_split_op(lib.ggml_tensor *dst, int ith, int nth, void *params) noexcept
    void oe_amx_pack_op(lib.ggml_tensor *dst, int ith, int nth, void *params) noexcept
    void oe_amx_pack_transposed_op(lib.ggml_tensor *dst, int ith, int nth, void *params) noexcept
    void oe_amx_product_op(lib.ggml_tensor *dst, int ith, int nth, void *params) noexcept
    void oe_amx_attention_op(lib.ggml_tensor *dst, int ith, int nth, void *params) noexcept
