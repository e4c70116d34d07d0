/* Gated delta rule (Yang et al. 2025) as ggml custom operations: callbacks for ggml_custom_4d, run by the CPU
 * backend's threads, each for its own columns of the states. */
#ifndef OE_DELTA_NET_OP_H
#define OE_DELTA_NET_OP_H

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* dst f32 [dv, heads, n], contiguous, from f32 tensors with contiguous rows: src[0], src[1]: queries and keys
 * [dk, key heads, n]; src[2]: values [dv, heads, n]; src[3], src[4]: logarithms of the decay, and the strength of the
 * update [heads, n], the first also [dk, heads, n]; src[5] to src[7]: the operands of segments.h. src[8], or NULL:
 * states f32 [dv * dk * heads, slots], each head's [dv, dk] in blocks of 32 of dv.
 *
 * For each token a head's state S [dk rows, dv columns] becomes e^g S, then S + k (beta (v - S^T k))^T, and S^T q is
 * the result. Head h has the queries and keys of head h % key heads. Tokens are computed one after the other, so the
 * bits do not depend on how rows are cut into segments. `kernel` is an oe_recurrent_kernel. */
void oe_delta_net_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

/* The same, but head h has the queries and keys of head h / (heads / key heads). */
void oe_delta_net_grouped_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

#ifdef __cplusplus
}
#endif

#endif
