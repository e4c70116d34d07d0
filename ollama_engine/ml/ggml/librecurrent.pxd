# Recurrent operations (csrc/kernels/recurrent): callbacks for ggml_custom_4d.

from ollama_engine.ml.ggml.libggml cimport ggml_tensor


cdef extern from "kernels/recurrent/causal_conv_op.h" nogil:
    const int OE_CONV_TAPS

    void oe_causal_conv_op(ggml_tensor *dst, int ith, int nth, void *unused) noexcept


cdef extern from "kernels/recurrent/lanes16.h" nogil:
    const int OE_LANES


cdef extern from "kernels/recurrent/delta_net_op.h" nogil:
    const int OE_DELTA_NET_KEYS

    void oe_delta_net_op(ggml_tensor *dst, int ith, int nth, void *grouped) noexcept


cdef extern from "kernels/recurrent/ssm_scan_op.h" nogil:
    const int OE_SSM_STATE

    void oe_ssm_scan_op(ggml_tensor *dst, int ith, int nth, void *unused) noexcept
