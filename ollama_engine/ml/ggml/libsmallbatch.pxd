# csrc/base/cpu.h; csrc/kernels/small_batch/kernel.h, op.h and experts_op.h; csrc/kernels/plain_read_op.h and
# weighted_sum_op.h

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.ml.ggml.libggml cimport ggml_tensor


cdef extern from "base/cpu.h" nogil:
    bint oe_cpu_has_avx2_fma_f16c()
    bint oe_cpu_has_avx_vnni()
    bint oe_cpu_has_avx512()
    bint oe_cpu_has_avx512_vnni()
    bint oe_cpu_is_intel()
    bint oe_cpu_has_neon_dotprod()
    bint oe_cpu_has_neon_i8mm()


cdef extern from "kernels/small_batch/kernel.h" nogil:
    enum oe_sb_type:
        OE_SB_Q4_K
        OE_SB_Q6_K
        OE_SB_Q5_K
        OE_SB_Q3_K
        OE_SB_Q2_K
        OE_SB_IQ4_XS
        OE_SB_Q4_0
        OE_SB_Q8_0
        OE_SB_MXFP4
        OE_SB_Q4_1
        OE_SB_Q5_0
        OE_SB_Q5_1
        OE_SB_IQ4_NL
        OE_SB_F16
        OE_SB_F16_WHOLE
        OE_SB_BF16

    enum oe_sb_isa:
        OE_SB_PLAIN
        OE_SB_AVX2
        OE_SB_AVX_VNNI
        OE_SB_AVX512
        OE_SB_AMX
        OE_SB_NEON
        OE_SB_I8MM

    enum oe_sb_fetch:
        OE_SB_FETCH_SPREAD
        OE_SB_FETCH_BURST
        OE_SB_FETCH_L2
        OE_SB_FETCH_DEEP
        OE_SB_FETCH_NONE

    struct oe_sb_variant:
        oe_sb_fetch fetch
        bint two_streams
        bint rows_in_lanes

    struct oe_sb_product:
        pass

    struct oe_sb_kernel:
        int64_t block
        void (*quantize)(const float *x, int64_t blocks, void *quad) noexcept
        bint packs
        int64_t interleaved
        int64_t whole

    const oe_sb_kernel *oe_sb_kernel_find(oe_sb_type type, oe_sb_isa isa, int64_t m)
    const oe_sb_kernel *oe_sb_kernel_for(const oe_sb_kernel *kernel, int64_t rows)
    bint oe_sb_interleaves(const oe_sb_kernel *kernel, oe_sb_variant variant, int64_t k, int64_t rows)


cdef extern from "kernels/small_batch/op.h" nogil:
    float oe_sb_norm_eps(const ggml_tensor *norm)
    int64_t oe_sb_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t rows)
    struct oe_sb_rounding:
        const oe_sb_kernel *kernel
        bint interleaved
        float eps

    void oe_sb_quantize_op(ggml_tensor *dst, int ith, int nth, void *rounding) noexcept
    void oe_sb_quantize_swiglu_op(ggml_tensor *dst, int ith, int nth, void *rounding) noexcept
    void oe_sb_quantize_norm_op(ggml_tensor *dst, int ith, int nth, void *rounding) noexcept
    struct oe_sb_multiplying:
        const oe_sb_kernel *kernel
        oe_sb_variant variant

    const int OE_SB_TOGETHER

    struct oe_sb_together:
        int64_t rows
        int count
        oe_sb_multiplying *products

    void oe_sb_multiply_op(ggml_tensor *dst, int ith, int nth, void *together) noexcept


cdef extern from "kernels/small_batch/experts_op.h" nogil:
    int64_t oe_experts_plan_size(int64_t routes, int64_t experts)
    int64_t oe_experts_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t routes)
    void oe_experts_plan_op(ggml_tensor *dst, int ith, int nth, void *experts) noexcept
    void oe_experts_quantize_op(ggml_tensor *dst, int ith, int nth, void *multiplying) noexcept
    void oe_experts_multiply_op(ggml_tensor *dst, int ith, int nth, void *multiplying) noexcept


cdef extern from "kernels/plain_read_op.h" nogil:
    void oe_plain_read_op(ggml_tensor *dst, int ith, int nth, void *unused) noexcept


cdef extern from "kernels/weighted_sum_op.h" nogil:
    void oe_weighted_sum_op(ggml_tensor *dst, int ith, int nth, void *unused) noexcept
