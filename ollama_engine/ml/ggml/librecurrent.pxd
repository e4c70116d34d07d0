# Recurrent operations (csrc/kernels/recurrent): callbacks for ggml_custom_4d.

from ollama_engine.ml.ggml.libggml cimport ggml_tensor


cdef extern from "kernels/recurrent/kernel.h" nogil:
    const int OE_CONV_TAPS
    const int OE_STATE_COLUMNS
    const int OE_STATE_ROWS

    ctypedef struct oe_recurrent_kernel:
        pass

    ctypedef enum oe_recurrent_isa:
        OE_RECURRENT_SCALAR
        OE_RECURRENT_AVX2
        OE_RECURRENT_AVX512
        OE_RECURRENT_NEON

    const oe_recurrent_kernel *oe_recurrent_kernel_find(oe_recurrent_isa isa) noexcept


cdef extern from "kernels/recurrent/causal_conv_op.h" nogil:
    void oe_causal_conv_op(ggml_tensor *dst, int ith, int nth, void *kernel) noexcept
    void oe_causal_conv_gated_op(ggml_tensor *dst, int ith, int nth, void *kernel) noexcept
    void oe_causal_conv_silu_op(ggml_tensor *dst, int ith, int nth, void *kernel) noexcept


cdef extern from "kernels/recurrent/delta_net_op.h" nogil:
    ctypedef struct oe_delta_net_by:
        const oe_recurrent_kernel *kernel
        bint grouped
        bint to_unit
        float eps

    void oe_delta_net_op(ggml_tensor *dst, int ith, int nth, void *by) noexcept


cdef extern from "kernels/recurrent/ssm_scan_op.h" nogil:
    void oe_ssm_scan_op(ggml_tensor *dst, int ith, int nth, void *kernel) noexcept
