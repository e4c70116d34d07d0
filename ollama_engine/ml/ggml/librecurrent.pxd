# Recurrent operations (csrc/kernels/recurrent): callbacks for ggml_custom_4d.

from ollama_engine.ml.ggml.libggml cimport ggml_tensor


cdef extern from "kernels/recurrent/causal_conv_op.h" nogil:
    const int OE_CONV_TAPS

    void oe_causal_conv_op(ggml_tensor *dst, int ith, int nth, void *unused) noexcept
