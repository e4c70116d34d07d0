/* Causal depthwise convolution as ggml custom operations: callbacks for ggml_custom_4d, run by the CPU backend's
 * threads, each for its own channels. */
#ifndef OE_CAUSAL_CONV_OP_H
#define OE_CAUSAL_CONV_OP_H

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* dst f32 [channels, n], contiguous, from src[0] f32 [channels, n] with contiguous rows, src[1] f32 [taps, channels],
 * the operands of segments.h, src[2] to src[4], and src[5] f32 [channels], which is added, or NULL. src[6], or NULL:
 * states f32 [channels * (taps - 1), slots], the inputs before the next one, the oldest first, [channels, taps - 1].
 * Taps are added in order, so the bits do not depend on how rows are cut into segments. `kernel` is an
 * oe_recurrent_kernel. */
void oe_causal_conv_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

/* The same, and SiLU of the result. */
void oe_causal_conv_silu_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

/* The same of rows of three parts, src[0] [3 * channels, n]: what the inputs are multiplied with, what the results are
 * multiplied with, and the inputs. States hold the products. */
void oe_causal_conv_gated_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

#ifdef __cplusplus
}
#endif

#endif
