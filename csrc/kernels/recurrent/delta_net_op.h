/* Gated delta rule (Yang et al. 2025) as a ggml custom operation: a callback for ggml_custom_4d, run by the CPU
 * backend's threads, each for its own columns of the states. */
#ifndef OE_DELTA_NET_OP_H
#define OE_DELTA_NET_OP_H

#include "kernels/recurrent/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

typedef struct oe_delta_net_by {
    const oe_recurrent_kernel *kernel;
    bool grouped; /* head h has the queries and keys of head h / (heads / key heads), not of h % key heads */
    bool to_unit; /* queries and keys are divided by their lengths first: see oe_delta_net */
    float eps;
} oe_delta_net_by;

/* dst f32 [dv, heads, n], contiguous, from f32 tensors with contiguous rows: src[0], src[1]: queries and keys
 * [dk, key heads, n]; src[2]: values [dv, heads, n]; src[3], src[4]: logarithms of the decay, and the strength of the
 * update [heads, n], the first also [dk, heads, n]; src[5] to src[7]: the operands of segments.h. src[8], or NULL:
 * states f32 [dv * dk * heads, slots], each head's [dv, dk] in blocks of 32 of dv.
 *
 * For each token a head's state S [dk rows, dv columns] becomes e^g S, then S + k (beta (v - S^T k))^T, and S^T q is
 * the result. Tokens are computed one after the other, so the bits do not depend on how rows are cut into segments.
 * `by` is an oe_delta_net_by. */
void oe_delta_net_op(struct ggml_tensor *dst, int ith, int nth, void *by);

#ifdef __cplusplus
}
#endif

#endif
