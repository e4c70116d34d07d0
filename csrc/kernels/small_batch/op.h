/* Small-batch matmul (kernel.h) as ggml custom operations: callbacks for ggml_custom_4d, run by the CPU backend's
 * threads. `kernel` is an oe_sb_kernel. */
#ifndef OE_SB_OP_H
#define OE_SB_OP_H

#include "kernels/small_batch/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* Size of oe_sb_quantize_op's dst in bytes. */
int64_t oe_sb_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t rows);

/* dst i8 [oe_sb_acts_size] from src[0] f32 [k, rows] with contiguous rows. */
void oe_sb_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

/* dst f32 [m, rows] from src[0], the weights [k, m], and src[1], which oe_sb_quantize_op wrote. Several products may
 * share src[1], but must run one after the other, because it holds their chunk counter. */
void oe_sb_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

#ifdef __cplusplus
}
#endif

#endif
