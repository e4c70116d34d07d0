/* State-space scan of Mamba-2 (Dao and Gu 2024) as a ggml custom operation: a callback for ggml_custom_4d, run by the
 * CPU backend's threads, each for its own rows of the states. */
#ifndef OE_SSM_SCAN_OP_H
#define OE_SSM_SCAN_OP_H

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

#define OE_SSM_STATE 256 /* most numbers of a state for each of a head's dimensions */

/* dst f32 [head_dim, heads, n], contiguous, from f32 tensors with contiguous rows: src[0]: x [head_dim, heads, n];
 * src[1]: time steps [heads, n]; src[2]: a [heads], one number for each head; src[3], src[4]: b and c
 * [d_state, groups, n]; src[5] to src[7]: the operands of segments.h. src[8], if any: states f32
 * [d_state * head_dim * heads, slots], each head's [d_state, head_dim].
 *
 * For each token a head's state h becomes e^(dt a) h + dt x b^T, and h c is the result. Head i has the b and c of group
 * i / (heads / groups). Tokens are computed one after the other, so the bits do not depend on how rows are cut into
 * segments. */
void oe_ssm_scan_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

#ifdef __cplusplus
}
#endif

#endif
