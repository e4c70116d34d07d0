/* Causal depthwise convolution as a ggml custom operation: a callback for ggml_custom_4d, run by the CPU backend's
 * threads, each for its own channels. */
#ifndef OE_CAUSAL_CONV_OP_H
#define OE_CAUSAL_CONV_OP_H

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

#define OE_CONV_TAPS 16 /* most taps */

/* dst f32 [channels, n], contiguous, from src[0] f32 [channels, n] with contiguous rows, src[1] f32 [taps, channels],
 * and the operands of segments.h, src[2] to src[4]. src[5], if any: states f32 [channels * (taps - 1), slots], the
 * inputs before the next one, the oldest first, [channels, taps - 1]. Taps are added in order, so the bits do not
 * depend on how rows are cut into segments. */
void oe_causal_conv_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

#ifdef __cplusplus
}
#endif

#endif
