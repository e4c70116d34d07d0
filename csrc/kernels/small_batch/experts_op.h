/* Small-batch products with experts, where each row of activations names its matrix, with the kernels of kernel.h. They
 * are ggml custom operations: callbacks for ggml_custom_4d, run by the CPU backend's threads.
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

/* Size of oe_experts_plan_op's dst, in i32. */
int64_t oe_experts_plan_size(int64_t routes, int64_t experts);

/* Size of oe_experts_quantize_op's dst in bytes. */
int64_t oe_experts_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t routes);

/* dst i32 [oe_experts_plan_size] from src[0], the ids i32 [used, tokens] with contiguous rows. `experts` is their
 * number, cast to a pointer; an id beyond it counts as the nearest valid one. For one thread. */
void oe_experts_plan_op(struct ggml_tensor *dst, int ith, int nth, void *experts);

/* dst i8 [oe_experts_acts_size] from src[0] f32 [k, 1 or a divisor of used, tokens] with contiguous rows, src[1], the
 * ids, and src[2], their plan. `multiplying` is an oe_sb_multiplying (op.h): that of a product of them, or one of a
 * variant for which they lie alike. */
void oe_experts_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *multiplying);

/* dst f32 [m, used, tokens] from src[0], the contiguous weights [k, m, experts], src[1], which oe_experts_quantize_op
 * wrote, and src[2], the plan. Several products may share src[1], but must run one after the other, because it holds
 * their chunk counter. `multiplying` is an oe_sb_multiplying (op.h). */
void oe_experts_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *multiplying);

#ifdef __cplusplus
}
#endif

#endif
