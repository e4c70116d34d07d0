/* State-space scan of Mamba-2 (Dao and Gu 2024) as a ggml custom operation: a callback for ggml_custom_4d, run by the
 * CPU backend's threads, each for its own columns of the states. */
#ifndef OE_SSM_SCAN_OP_H
#define OE_SSM_SCAN_OP_H

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* dst f32 [head_dim, heads, n], contiguous, from f32 tensors with contiguous rows: src[0]: x [head_dim, heads, n];
 * src[1]: time steps [heads, n]; src[2]: a, one number for each head; src[3], src[4]: b and c [d_state, groups, n];
 * src[5] to src[7]: the operands of segments.h. src[8], or NULL: states f32 [(head_dim * d_state + blocks) * heads,
 * slots]: each head's matrix [head_dim, d_state] in blocks of 32 of head_dim, then the scale of each block, by which it
 * is multiplied; all zeros are a new state. src[9], or NULL: d, one number for each head.
 *
 * For each token a head's state h becomes e^(dt a) h + dt b x^T, and h^T c + d x is the result. Head i has the b and c
 * of group i / (heads / groups). Tokens are computed one after the other, so the bits do not depend on how rows are cut
 * into segments. `kernel` is an oe_recurrent_kernel. */
void oe_ssm_scan_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

#ifdef __cplusplus
}
#endif

#endif
