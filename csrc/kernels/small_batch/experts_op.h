/* Products in which each row of activations names the matrix that it is multiplied with (mixtures of experts), for few
 * rows, by the kernels of kernel.h. As operations of ggml's graphs: callbacks for ggml_custom_4d, run by the CPU
 * backend's threads.
 *
 * A *route* is one row of one token: number slot + used * token, in the order of the ids. The first operation sorts the
 * routes by their experts; those of one expert are a *run*, for which its weights are read once. The second quantizes
 * activations into that order, the third multiplies and puts results where the routes are. */
#ifndef OE_SB_EXPERTS_OP_H
#define OE_SB_EXPERTS_OP_H

#include "kernels/small_batch/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* Numbers that oe_experts_plan_op needs as dst. */
int64_t oe_experts_plan_size(int64_t routes, int64_t experts);

/* Bytes that oe_experts_quantize_op needs as dst. */
int64_t oe_experts_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t routes);

/* dst i32 [oe_experts_plan_size] from src[0], the ids i32 [used, tokens] with contiguous rows. `experts` is their
 * number, cast to a pointer; ids are below it, or are taken for the nearest that is. For one thread. */
void oe_experts_plan_op(struct ggml_tensor *dst, int ith, int nth, void *experts);

/* dst i8 [oe_experts_acts_size] from src[0] f32 [k, 1 or a divisor of used, tokens] with contiguous rows, src[1], the
 * ids, and src[2], their plan. `kernel` is an oe_sb_kernel. */
void oe_experts_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

/* dst f32 [m, used, tokens] from src[0], the contiguous weights [k, m, experts], src[1], which oe_experts_quantize_op
 * wrote, and src[2], the plan. Several products may share src[1], one after the other: where threads take their shares
 * from is kept there. */
void oe_experts_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

#ifdef __cplusplus
}
#endif

#endif
