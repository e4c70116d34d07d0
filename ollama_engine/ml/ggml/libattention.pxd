# csrc/kernels/attention.h and attention_op.h

from libc.stdint cimport int64_t

from ollama_engine.ml.ggml.libggml cimport ggml_tensor


cdef extern from "kernels/attention.h" nogil:
    enum oe_attention_type:
        OE_ATTENTION_TYPES

    enum oe_attention_isa:
        OE_ATTENTION_SCALAR
        OE_ATTENTION_AVX2
        OE_ATTENTION_AVX512
        OE_ATTENTION_NEON

    struct oe_attention_kernel:
        pass

    const char *oe_attention_type_name(oe_attention_type type)
    const oe_attention_kernel *oe_attention_kernel_find(oe_attention_type type, oe_attention_isa isa)


cdef extern from "kernels/attention_op.h" nogil:
    struct oe_attention_params:
        const oe_attention_kernel *kernel
        float scale
        float cap
        int threads

    struct oe_attention_shape:
        int64_t rows
        int64_t heads
        int64_t key_dim
        int64_t value_dim
        int64_t n

    int64_t oe_attention_plan_size(int64_t rows, int64_t kv_heads)
    void oe_attention_plan_op(ggml_tensor *dst, int ith, int nth, void *unused) noexcept
    int64_t oe_attention_size(const oe_attention_shape *shape, int threads)
    void oe_attention_op(ggml_tensor *dst, int ith, int nth, void *params) noexcept
