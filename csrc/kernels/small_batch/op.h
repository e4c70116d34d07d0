/* Products with few rows (kernel.h) as operations of ggml's graphs: callbacks for ggml_custom_4d, run by the threads of
 * the CPU backend. `kernel` is an oe_sb_kernel. */
#ifndef OE_SB_OP_H
#define OE_SB_OP_H

#include "kernels/small_batch/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* Bytes that oe_sb_quantize_op needs as dst. */
int64_t oe_sb_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t rows);

/* dst i8 [oe_sb_acts_size] from src[0] f32 [k, rows] with contiguous rows. */
void oe_sb_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

/* dst f32 [m, rows] from src[0], the weights [k, m], and src[1], which oe_sb_quantize_op wrote. Several products may
 * share one src[1], one after the other: where threads take their shares from is kept there. */
void oe_sb_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

#ifdef __cplusplus
}
#endif

#endif
